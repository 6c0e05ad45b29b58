// What the page asks the server it came from. Errors are the sentence that the server says.

async function answered(path, options) {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer; is it still running?");
  }
  if (answer.ok) return answer;
  let said = `The server answers with the status ${answer.status}.`;
  try {
    said = (await answer.json()).error ?? said;
  } catch {
    said = `The server answers with the status ${answer.status}.`; // no sentence of ours came with it
  }
  const failure = new Error(said);
  failure.status = answer.status;
  throw failure;
}

export async function get(path, signal = undefined) {
  return (await answered(path, { signal })).json();
}

export async function post(path, body, signal = undefined) {
  return (await answered(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal })).json();
}

// Numbers as bytes: `{ shapes, high, type, bytes, looks }`.
export async function packedBytes(path, signal = undefined) {
  const answer = await answered(path, { signal });
  const text = answer.headers.get("X-Shapes") ?? "";
  return {
    shapes: text ? text.split(";").map((shape) => shape.split(",").map(Number)) : [],
    high: Number(answer.headers.get("X-High")),
    type: answer.headers.get("X-Format"),
    looks: Number(answer.headers.get("X-Looks") ?? 0),
    bytes: new Uint8Array(await answer.arrayBuffer()),
  };
}

// Whether an error only says that nobody wants the answer any more.
export function superseded(error) {
  return error.name === "AbortError";
}
