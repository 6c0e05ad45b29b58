// A model to try edits on: type, move the controls, and see answer, attention and relevance change.

import { get, packedBytes, post, superseded } from "./api.js";
import { announce, clear, element, number, once } from "./dom.js";
import { ink, paint, scaleOf } from "./colours.js";
import { editControls } from "./edits.js";
import { frame, save } from "./export.js";
import { headMatrix, heatmap, overview } from "./matrix.js";
import { Grid, unpack } from "./packed.js";
import { relevance, tokenLine } from "./tokens.js";

const TYPING = 250; // milliseconds after the last key
const MOVING = 8; // and after a control was moved
const MOST_TILES = 48; // that are fetched at once
const SIDES = [["unedited", "Unedited"], ["edited", "Edited"]];
const FACTS = { zeros: "share of weights that are zero", confidence: "mean of each row's largest weight", entropy: "mean entropy of the rows (nats)", change: "share of each row's weight that edits moved" };

function field(label, control) {
  control.id = control.id || once("field");
  return element("div", { class: "field" }, element("label", { for: control.id }, label), control);
}

// The attention of one head at full size, of which only the tiles that are looked at are fetched.
class TiledGrid {
  constructor(key, at, head, site, side) {
    Object.assign(this, { key, at, head, rows: site.queries, columns: site.keys, side, last: site.levels - 1, count: 1, low: 0, high: 1 });
    this.tiles = new Map();
  }

  // Fetch one level of some cells, where it is not there yet; true when something new came.
  async fetch(level, [top, bottom], [left, right], signal) {
    const wide = this.side * 2 ** level;
    const wanted = [];
    for (let row = Math.floor(top / wide); row * wide < Math.min(bottom, this.rows); row += 1) {
      for (let column = Math.floor(left / wide); column * wide < Math.min(right, this.columns); column += 1) {
        if (!this.tiles.has(`${level},${row},${column}`)) wanted.push([row, column]);
      }
    }
    await Promise.all(wanted.slice(0, MOST_TILES).map(async ([row, column]) => {
      const found = await packedBytes(`/api/live/looks/${this.key}/tile?site=${this.at}&head=${this.head}&level=${level}&row=${row}&column=${column}`, signal);
      const grid = unpack({ shape: [1, ...found.shapes[0]], type: "float16", high: found.high, bytes: found.bytes });
      this.tiles.set(`${level},${row},${column}`, grid);
      if (level === this.last) this.high = grid.ends(0)[1];
    }));
    return wanted.length > 0;
  }

  value(_, row, column) {
    for (let level = 0; level <= this.last; level += 1) {
      const step = 2 ** level;
      const tile = this.tiles.get(`${level},${Math.floor(row / (this.side * step))},${Math.floor(column / (this.side * step))}`);
      if (tile) return tile.value(0, Math.floor(row / step) % this.side, Math.floor(column / step) % this.side);
    }
    return NaN;
  }

  ends() {
    return [0, this.high];
  }

  // As `Grid.levels`: the coarse tiles first, the finer ones over them.
  levels(_, scale) {
    const found = new Uint8Array(this.rows * this.columns);
    for (let level = this.last; level >= 0; level -= 1) {
      const step = 2 ** level;
      for (const [name, tile] of this.tiles) {
        const [own, down, across] = name.split(",").map(Number);
        if (own !== level) continue;
        const places = tile.levels(0, scale);
        const [top, left] = [down * this.side * step, across * this.side * step];
        for (let row = top; row < Math.min(this.rows, top + tile.rows * step); row += 1) {
          const base = Math.floor((row - top) / step) * tile.columns;
          for (let column = left; column < Math.min(this.columns, left + tile.columns * step); column += 1) found[row * this.columns + column] = places[base + Math.floor((column - left) / step)];
        }
      }
    }
    return found;
  }
}

// --- what is asked ---

function inputCard(about, changed) {
  const { input } = about;
  const text = element("textarea", { rows: 4, maxlength: about.limits.characters, spellcheck: "false", data: { control: "text" } });
  const pair = element("textarea", { rows: 4, maxlength: about.limits.characters, spellcheck: "false", data: { control: "pair" } });
  const examples = element("select", { data: { control: "example" } }, ...(input.image ? [] : [element("option", { value: "" }, "your own text")]),
    ...about.examples.map(({ number: at, texts }) => element("option", { value: at }, `${at}: ${(texts[0] ?? "image").slice(0, 60)}`)));
  const picture = element("canvas", { class: "image", role: "img", "aria-label": "The image that is asked about", width: 1, height: 1 });
  const drawPicture = async (boxes = []) => {
    const image = new Image();
    image.src = `/api/live/examples/${Number(examples.value)}/image`;
    await image.decode();
    const factor = Math.max(1, Math.min(8, Math.floor(320 / image.naturalWidth)));
    picture.width = image.naturalWidth * factor;
    picture.height = image.naturalHeight * factor;
    const context = picture.getContext("2d");
    context.imageSmoothingEnabled = factor === 1;
    context.drawImage(image, 0, 0, picture.width, picture.height);
    context.font = "12px system-ui, sans-serif";
    boxes.forEach(([left, top, right, bottom], at) => {
      context.strokeStyle = "#ffffff";
      context.lineWidth = 3;
      context.strokeRect(left * factor, top * factor, (right - left) * factor, (bottom - top) * factor);
      context.strokeStyle = "#0072b2";
      context.lineWidth = 1.5;
      context.strokeRect(left * factor, top * factor, (right - left) * factor, (bottom - top) * factor);
      context.fillStyle = "#0072b2";
      context.fillText(String(at), left * factor + 3, top * factor + 13);
    });
  };
  const fill = () => {
    const example = about.examples.find((one) => String(one.number) === examples.value);
    if (!example) return;
    text.value = example.texts[0] ?? "";
    pair.value = example.texts[1] ?? "";
  };
  examples.addEventListener("change", () => { fill(); changed(true); });
  for (const area of [text, pair]) area.addEventListener("input", () => changed(false));
  text.value = input.writes ? "The capital of France is" : "The animal did not cross the street because it was too tired.";
  if (input.image && about.examples.length) fill();
  const names = { text: input.image ? "Question" : input.writes ? "Prompt" : input.pair ? "Text, or question" : "Text", pair: "Second text, such as the paragraph of the question (may stay empty)" };
  const node = element("div", { class: "card input" }, element("h2", { class: "flat" }, "Input"),
    about.examples.length ? field(`Example of the task ${about.task}`, examples) : null,
    input.text ? field(names.text, text) : null, input.pair ? field(names.pair, pair) : null,
    input.image ? element("div", { class: "image-holder" }, picture) : null);
  return {
    element: node,
    get: () => ({ text: input.text ? text.value : "", ...(input.pair && pair.value ? { pair: pair.value } : {}), ...(input.image ? { example: Number(examples.value) } : {}) }),
    picture: (found) => (input.image ? drawPicture(found?.boxes) : null),
    complete: () => input.image || Boolean(text.value.trim()),
  };
}

// --- what the model answers ---

function share(value) {
  if (value === null) return "–";
  const percent = 100 * value;
  return `${percent !== 0 && percent < 0.1 ? percent.toPrecision(2) : percent.toFixed(1)} %`;
}

function bar(value, label) {
  const inner = element("div", { class: "bar" });
  inner.style.width = `${100 * Math.min(1, Math.max(0, value ?? 0))}%`;
  return element("td", { class: "bars" }, element("div", { class: "bar-line", "aria-hidden": "true" }, inner), element("span", { "aria-label": label }, share(value)));
}

function candidatesTable(result, choose) {
  const named = (one) => `${one.id ?? `${one.start},${one.end}`}`;
  const sides = SIDES.map(([side]) => new Map(result[side].answer.candidates.map((one) => [named(one), one])));
  const rows = [...new Set(SIDES.flatMap(([side]) => result[side].answer.candidates.slice(0, 6).map(named)))]
    .map((key) => [sides[1].get(key) ?? sides[0].get(key), sides[0].get(key)?.probability ?? null, sides[1].get(key)?.probability ?? null])
    .sort((one, other) => (other[2] ?? 0) - (one[2] ?? 0));
  return element("table", { class: "candidates", "aria-label": "Answers" }, element("thead", {}, element("tr", {}, ...["answer", "unedited", "edited"].map((name) => element("th", { scope: "col", class: "plain" }, name)))),
    element("tbody", {}, ...rows.map(([one, before, after]) => element("tr", { data: { answer: named(one), probability: after ?? "" } },
      element("td", {}, choose ? element("button", { type: "button", class: "button small", on: { click: () => choose(one.id) } }, element("bdi", {}, one.text)) : element("bdi", {}, one.text)),
      bar(before, "unedited"), bar(after, "edited")))));
}

function changeText({ change, edited }) {
  const sparse = `${share(edited.sparsity)} of all attention weights are zero`;
  if (change.measure === "cosine") return `Cosine of the embeddings with and without edits: ${number(change.value, 6)}; ${sparse}.`;
  if (change.measure === "difference") return `Edits move the number by ${number(change.value, 4)}; ${sparse}.`;
  return `${change.same ? "The answer stays the same" : "The answer changes"}: what was most probable goes from ${share(change.before)} to ${share(change.value)}; ${sparse}.`;
}

function answerCard() {
  const sentence = element("p", { class: "findings", role: "status" });
  const body = element("div");
  const note = element("p", { class: "note" });
  const show = (result, choose) => {
    sentence.textContent = changeText(result);
    sentence.classList.toggle("changed", result.change.same === false);
    note.textContent = result.cut ? "The text is longer than the model, or the server, takes; its end was left out." : "";
    clear(body);
    const { answer } = result.edited;
    if (answer.candidates) body.append(candidatesTable(result, choose));
    if (answer.kind === "number") body.append(element("p", {}, `unedited ${number(result.unedited.answer.value, 5)}, edited ${number(answer.value, 5)}`));
    if (answer.places) {
      const stream = result.tokens.decoder ?? result.tokens.encoder ?? Object.values(result.tokens)[0];
      const scale = scaleOf({ low: 0, high: 1 });
      const count = Math.min(answer.places.length, stream.length);
      const line = tokenLine({
        tokens: stream.slice(0, count), label: "What the model answers at every token",
        colour: (at) => ({ ground: paint(scale.name, answer.places[at].probability), ink: ink(scale.name, answer.places[at].probability) }),
        read: (at) => `${at} “${stream[at]}”: ${answer.places[at].text} (${share(answer.places[at].probability)})`,
      });
      body.append(element("p", { class: "panel-title" }, answer.kind === "tags" ? "Tag at every token (edited)" : "Best answer at every token (edited)"), line.element);
    }
  };
  return { element: element("div", { class: "card answers" }, element("h2", { class: "flat" }, "Answer"), sentence, body, note), show };
}

// --- generation ---

function stepsCard(changed) {
  let steps = [];
  let best = null;
  const line = element("p", { class: "tokens" });
  const step = element("button", { type: "button", class: "button primary" }, "Step: take the most probable token");
  const back = element("button", { type: "button", class: "button" }, "Back");
  const again = element("button", { type: "button", class: "button" }, "Begin again");
  const take = (id) => { steps = [...steps, id]; changed(); };
  step.addEventListener("click", () => { if (best !== null) take(best); });
  back.addEventListener("click", () => { steps = steps.slice(0, -1); changed(); });
  again.addEventListener("click", () => { steps = []; changed(); });
  const show = (result) => {
    best = result.edited.answer.candidates[0]?.id ?? null;
    const tokens = result.tokens.decoder ?? [];
    const first = tokens.length - steps.length;
    line.replaceChildren(...tokens.flatMap((token, at) => [element("bdi", { class: at >= first && steps.length ? "token written" : "token" }, token), " "]));
    back.disabled = steps.length === 0;
    again.disabled = steps.length === 0;
  };
  return {
    element: element("div", { class: "card steps" }, element("h2", { class: "flat" }, "Write on, step by step"), element("div", { class: "row" }, step, back, again),
      element("p", { class: "note" }, "Each step is one token; choose another one in the list of answers. Edits that are on count."), line),
    show, take, get: () => steps, reset: () => { steps = []; },
  };
}

// --- attention ---

// The sites of one role: all heads, and the one that is open, unedited and edited.
function attentionGroup(role, sites, side, onOpen) {
  const heads = Math.max(...sites.map((site) => site.heads));
  const rows = sites.map((site) => `layer ${site.layer}`);
  const columns = Array.from({ length: heads }, (_, at) => String(at));
  const present = sites.flatMap((site) => columns.map((_, at) => at < site.heads));
  let current = null;
  let result = null;
  let turn = 0;
  const parts = SIDES.map(([name, title]) => ({ name, title, view: null, map: null, grid: null, key: null, place: element("div"), full: element("div"), fetching: null }));
  const heading = element("h4", { class: "open-head" });
  const close = element("button", { type: "button", class: "button small", on: { click: () => shut() } }, "close");
  const opened = element("section", { class: "opened", hidden: true, "aria-label": `Head of ${role} at full size` }, element("div", { class: "row between" }, heading, close), element("div", { class: "columns" }, ...parts.map((part) => part.full)));
  const node = element("div", { class: "card group", data: { role } }, element("h3", {}, `Attention: ${role}`), element("div", { class: "columns" }, ...parts.map((part) => part.place)), opened);
  node.addEventListener("keydown", (event) => { if (event.key === "Escape" && current !== null) { shut(); event.stopPropagation(); } });

  function shut() {
    current = null;
    opened.hidden = true;
    for (const part of parts) part.view?.mark([]);
    onOpen(null);
    (parts[1].view ?? parts[0].view).board.holder.focus();
  }

  async function open(row, column) {
    if (!present[row * heads + column] || result === null) return;
    current = { row, column };
    turn += 1;
    const mine = turn;
    const site = sites[row];
    const name = `${role}, ${rows[row]}, head ${column}`;
    const tokens = { queries: result.tokens[site.queries], keys: result.tokens[site.keys] };
    await Promise.all(parts.map(async (part) => {
      const grid = new TiledGrid(result[part.name].key, site.at, column, result.sites[site.at], side);
      await grid.fetch(grid.last, [0, 1], [0, 1]);
      if (mine !== turn) return;
      part.grid = grid;
    })).catch((error) => { if (!superseded(error)) announce(error.message); });
    if (mine !== turn || parts.some((part) => part.grid === null)) return;
    const high = Math.max(...parts.map((part) => part.grid.high), 1e-9); // one scale, or the pictures could not be compared
    for (const part of parts) {
      const next = { grid: part.grid, index: 0, high, ...tokens, title: `${part.title}: ${name}` };
      if (part.map === null) {
        part.map = heatmap({ ...next, onPick: ({ row: query }) => onOpen({ ...current, site: sites[current.row], role }, query) });
        const refine = () => finer(part);
        part.map.board.holder.addEventListener("scroll", () => { clearTimeout(part.fetching); part.fetching = setTimeout(refine, 80); });
        part.map.element.addEventListener("change", () => { clearTimeout(part.fetching); part.fetching = setTimeout(refine, 20); });
        clear(part.full).append(frame(part.map, { name: `${part.name}-head`, title: part.title }));
      } else part.map.show(next);
      setTimeout(finer, 30, part);
    }
    heading.textContent = name;
    opened.hidden = false;
    for (const part of parts) part.view?.mark([[row, column]]);
    onOpen({ row, column, site, role });
  }

  // Fetch the tiles that can be seen, as fine as the screen shows them.
  async function finer(part) {
    const { board } = part.map;
    const { grid } = part;
    if (grid.last === 0) return;
    if (!board.place) { // it was just opened, and is laid out in a moment
      if (node.isConnected && current !== null) setTimeout(finer, 60, part);
      return;
    }
    const cell = board.place.wide * Math.min(2, devicePixelRatio || 1);
    const level = Math.min(grid.last, Math.max(0, Math.floor(Math.log2(1 / cell))));
    const { holder } = board;
    const seen = (from, size, before, wide) => [Math.max(0, Math.floor((from - before) / wide)), Math.ceil((from + size - before) / wide) + 1];
    try {
      const news = await grid.fetch(level, seen(holder.scrollTop, Math.min(holder.clientHeight, innerHeight), board.place.top, board.place.high), seen(holder.scrollLeft, holder.clientWidth, board.place.left, board.place.wide));
      if (news && part.grid === grid) part.map.show({ grid });
    } catch (error) {
      if (!superseded(error)) announce(error.message);
    }
  }

  // Bytes of all sites to the thumbnails of this group's.
  function gridOf(found) {
    const shape = found.shapes[sites[0].at];
    const size = shape[1] * shape[2];
    const bytes = new Uint8Array(sites.length * heads * size);
    sites.forEach((site, row) => {
      let from = 0;
      for (let at = 0; at < site.at; at += 1) from += found.shapes[at].reduce((product, one) => product * one, 1);
      bytes.set(found.bytes.subarray(from, from + site.heads * size), row * heads * size);
    });
    return new Grid({ count: sites.length * heads, rows: shape[1], columns: shape[2], low: 0, high: found.high, root: true, bytes });
  }

  function show(next, found) {
    result = next;
    for (const part of parts) {
      if (part.key === next[part.name].key) continue; // a control changes one side only
      part.key = next[part.name].key;
      const grid = gridOf(found[part.name]);
      if (part.view === null) {
        part.view = overview({ rows, columns, grid, present, label: `${part.title}: heads of ${role}`, open });
        clear(part.place).append(frame(part.view, { name: `${part.name}-heads`, title: part.title }));
      } else part.view.show({ grid });
    }
    if (current !== null) open(current.row, current.column);
  }
  return { element: node, show, open };
}

// Where a token looks and who looks at it.
function tokenCard(about) {
  let result = null;
  let chosen = null;
  let openHead = null;
  let controller = new AbortController();
  let known = new Map(); // what was shown of each side, which is not fetched again while nothing about it changes
  const streams = element("select", { data: { control: "stream" } });
  const heads = element("select", { data: { control: "heads" } }, element("option", { value: "all" }, "the mean of all heads"), element("option", { value: "open" }, "the head that is open"));
  const places = element("div");
  const out = element("div", { class: "columns" });
  const streamField = field("Sequence", streams);
  const note = element("p", { class: "note" }, "Choose a token with a click, or with the arrow keys and Enter.");
  let line = null;
  const streamOf = () => streams.value || Object.keys(result.tokens)[0];
  const mean = (parts, sites, stream, end) => {
    const total = new Float64Array(result.tokens[stream].length);
    let count = 0;
    sites.forEach((site, at) => {
      if (site[end] !== stream || (heads.value === "open" && (openHead === null || openHead.site.name !== site.name))) return;
      for (let head = 0; head < parts[at].rows; head += 1) {
        if (heads.value === "open" && openHead.column !== head) continue;
        count += 1;
        for (let place = 0; place < Math.min(total.length, parts[at].columns); place += 1) total[place] += parts[at].value(0, head, place);
      }
    });
    return count ? total.map((value) => value / count) : null;
  };
  const strip = (title, tokens, values) => {
    if (values === null) return null;
    const scale = scaleOf({ low: 0, high: Math.max(...values, 1e-9), root: true });
    const shown = tokenLine({ tokens, label: title, colour: (at) => ({ ground: paint(scale.name, scale.share(values[at])), ink: ink(scale.name, scale.share(values[at])) }), read: (at) => `${at} “${tokens[at]}”: ${number(values[at], 4)}` });
    return element("div", {}, element("p", { class: "panel-title" }, title), shown.element);
  };
  const fetchSide = async (side, stream) => {
    const found = await packedBytes(`/api/live/looks/${result[side].key}/token?stream=${encodeURIComponent(stream)}&position=${chosen}`, controller.signal);
    let from = 0;
    const grids = found.shapes.map((shape) => {
      const size = 2 * shape[0] * shape[1];
      const grid = unpack({ shape: [1, ...shape], type: "float16", bytes: found.bytes.slice(from, from + size) });
      from += size;
      return grid;
    });
    const shown = result.sites.map((site) => about.sites.find((one) => one.name === site.name));
    const looks = shown.filter((site) => site.queries === stream);
    const seen = shown.filter((site) => site.keys === stream);
    const word = `${chosen} “${result.tokens[stream][chosen]}”`;
    const others = (sites, end) => [...new Set(sites.map((site) => site[end]))];
    return element("div", {}, element("h3", {}, side === "edited" ? "Edited" : "Unedited"),
      ...others(looks, "keys").map((other) => strip(`Where ${word} looks${other === stream ? "" : ` in ${other}`}`, result.tokens[other], mean(grids.slice(0, found.looks), looks, other, "keys"))),
      ...others(seen, "queries").map((other) => strip(`Who looks at ${word}${other === stream ? "" : ` from ${other}`}`, result.tokens[other], mean(grids.slice(found.looks), seen, other, "queries"))));
  };
  const draw = async () => {
    if (result === null || chosen === null) return;
    controller.abort();
    controller = new AbortController();
    try {
      const place = JSON.stringify([streamOf(), chosen, heads.value, openHead?.site.name, openHead?.column]);
      const names = SIDES.map(([side]) => `${side} ${result[side].key} ${place}`);
      const nodes = await Promise.all(SIDES.map(([side], at) => known.get(names[at]) ?? fetchSide(side, streamOf())));
      known = new Map(names.map((name, at) => [name, nodes[at]]));
      out.replaceChildren(...nodes);
    } catch (error) {
      if (!superseded(error)) announce(error.message);
    }
  };
  const showLine = () => {
    const tokens = result.tokens[streamOf()];
    chosen = Math.min(chosen ?? 1, tokens.length - 1);
    const colour = (at) => (at === chosen ? { ground: "var(--accent)", ink: "var(--on-accent)" } : { ground: "transparent", ink: "inherit" });
    if (line === null) {
      line = tokenLine({ tokens, colour, label: "Tokens to choose from", read: (at) => `${at} “${result.tokens[streamOf()][at]}” (Enter or a click chooses it)`, onPick: (at) => pick(at) });
      places.append(line.element);
    } else line.show({ tokens });
  };
  const pick = (at) => { chosen = at; line.show(); draw(); };
  streams.addEventListener("change", () => { chosen = 0; showLine(); draw(); });
  heads.addEventListener("change", draw);
  const show = (next) => {
    const fresh = result === null || JSON.stringify(result.tokens) !== JSON.stringify(next.tokens);
    const names = Object.keys(next.tokens);
    if (names.join() !== [...streams.options].map((option) => option.value).join()) clear(streams).append(...names.map((name) => element("option", { value: name }, name)));
    streamField.hidden = names.length < 2;
    result = next;
    if (fresh) showLine();
    draw();
  };
  const node = element("div", { class: "card token-card" }, element("h2", { class: "flat" }, "Through one token"), element("div", { class: "row" }, streamField, field("Attention of", heads)), note, places, out);
  return {
    element: node, show,
    opened: (head, query) => {
      openHead = head;
      if (head !== null && query !== undefined) {
        streams.value = head.site.queries;
        heads.value = "open";
        showLine();
        pick(query);
      } else if (heads.value === "open") draw();
    },
  };
}

// --- relevance ---

function relevanceCard() {
  const out = element("div", { class: "columns" });
  const problem = element("p", { class: "note" });
  let controller = new AbortController();
  let timer = 0;
  const levels = new Map();
  const fetchAll = async (result, example) => {
    controller.abort();
    controller = new AbortController();
    try {
      const same = result.edited.key === result.unedited.key;
      const charts = await Promise.all(SIDES.slice(same ? 1 : 0).map(([side]) => post("/api/live/relevance", { key: result[side].key, ...(example === undefined ? {} : { example }) }, controller.signal)));
      problem.textContent = "";
      clear(out).append(...charts.map((chart, at) => {
        const [side, title] = SIDES[same ? 1 : at];
        if (example !== undefined && chart.boxes) chart.image = `/api/live/examples/${example}/image`;
        const view = relevance({ ...chart, name: `${side}-relevance`, title: `${title} relevance` });
        if (levels.get(side)) view.show(Math.min(levels.get(side), chart.levels.length - 1));
        view.element.addEventListener("input", (event) => levels.set(side, Number(event.target.value)));
        return frame(view, { name: `${side}-relevance`, title: same ? "Relevance" : title });
      }));
    } catch (error) {
      if (superseded(error)) return;
      clear(out);
      problem.textContent = error.message;
    }
  };
  return {
    element: element("div", { class: "card relevance-card" }, element("h2", { class: "flat" }, "Where the answer comes from"), problem, out),
    show: (result, example) => {
      clearTimeout(timer);
      if (result.edited.answer.kind === "embedding") problem.textContent = "This model has no head that answers, so there is no answer to explain; start the server with one (--kind, or --task).";
      else timer = setTimeout(fetchAll, 60, result, example);
    },
    stop: () => { clearTimeout(timer); controller.abort(); },
  };
}

// --- numbers of all heads ---

function factsCard(about) {
  const place = element("div");
  let view = null;
  let charts = [];
  const chartsOf = (result) => {
    const sites = result.sites.map((site) => about.sites.find((one) => one.name === site.name));
    const heads = Math.max(...sites.map((site) => site.heads));
    return SIDES.toReversed().flatMap(([side, title]) => Object.entries(result[side].facts).map(([name, values]) => ({
      kind: "HeadMatrix", name: `${side}-${name}`, title: `${title}: ${FACTS[name] ?? name}`, label: FACTS[name] ?? name, roles: sites.map((site) => site.role), layers: sites.map((site) => site.layer),
      values: values.map((row) => Array.from({ length: heads }, (_, at) => row[at] ?? null)), ...(name === "entropy" ? {} : { low: 0, high: 1 }),
    })));
  };
  return {
    element: element("div", { class: "facts-card" }, place),
    show: (result, open) => {
      const next = chartsOf(result);
      if (view === null || next.length !== charts.length) {
        const chosen = charts[Number(place.querySelector("select")?.value ?? 0)]?.name;
        charts = next;
        view = headMatrix(charts, { open: (chart, row, column) => open(chart.roles[row], chart.layers[row], column) });
        clear(place).append(frame(view, { name: "heads", title: "Every head, by a number", note: "Enter or a click opens the attention of a head." }));
        const at = charts.findIndex((chart) => chart.name === chosen);
        if (at > 0) view.show(at);
      } else {
        charts.splice(0, charts.length, ...next);
        view.show(Number(place.querySelector("select").value));
      }
    },
  };
}

// --- the edit to take away ---

function exportCard(edits, changed) {
  const text = element("textarea", { rows: 3, readonly: true, data: { control: "command" } });
  const problem = element("p", { class: "note", role: "status" });
  let exported = null;
  const copy = element("button", { type: "button", class: "button small" }, "Copy the command");
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text.value);
    } catch {
      text.select(); // no clipboard here: Ctrl-C copies what is selected
      document.execCommand("copy");
    }
    announce("Copied.");
  });
  const keep = element("button", { type: "button", class: "button small" }, "Save the edit as JSON");
  keep.addEventListener("click", () => save("edit.json", "application/json", JSON.stringify(exported, null, 2)));
  const file = element("input", { type: "file", accept: "application/json", class: "visually-hidden", tabindex: "-1", "aria-hidden": "true" });
  const load = element("button", { type: "button", class: "button small", on: { click: () => file.click() } }, "Load an edit");
  file.addEventListener("change", async () => {
    problem.textContent = "";
    try {
      const found = JSON.parse(await file.files[0].text());
      edits.set(found.controls);
      changed();
    } catch {
      problem.textContent = "This file holds no edit of this page.";
    }
    file.value = "";
  });
  const show = (result) => {
    exported = { model: result.model, ...result.edit };
    text.value = result.edit.command;
    copy.disabled = !result.edit.command;
    keep.disabled = !result.edit.command;
  };
  return { element: element("div", { class: "card" }, element("h2", { class: "flat" }, "Take the edit away"), field("The command that evaluates it", text), element("div", { class: "row" }, copy, keep, load, file), problem), show };
}

// --- all together ---

function build(about, holder) {
  const problem = element("p", { class: "problem", role: "alert", hidden: true });
  let controller = new AbortController();
  let timer = 0;
  let soon = 0;
  let groups = null;
  let overviews = { key: null, bytes: null };
  let looks = 0;
  const input = inputCard(about, (at_once) => { steps?.reset(); later(at_once ? 0 : TYPING); });
  const edits = editControls(about, () => later(MOVING));
  const answers = answerCard();
  const steps = about.input.writes ? stepsCard(() => later(0)) : null;
  const token = tokenCard(about);
  const relevant = relevanceCard();
  const facts = factsCard(about);
  const taken = exportCard(edits, () => later(0));
  const attention = element("div", { class: "attention" });

  function later(wait) {
    holder.dataset.state = "busy";
    clearTimeout(timer);
    timer = setTimeout(look, wait);
  }

  const fetchOverview = (key, signal) => packedBytes(`/api/live/looks/${key}/overview?side=48`, signal);

  async function look() {
    controller.abort(); // what was asked before is not wanted any more; the server notices, too
    controller = new AbortController();
    const { signal } = controller;
    if (!input.complete()) {
      holder.dataset.state = "ready";
      return;
    }
    try {
      const asked = { ...input.get(), ...(steps ? { steps: steps.get() } : {}) };
      const result = await post("/api/live/look", { input: asked, edits: edits.get() }, signal);
      result.model = about.model;
      const { unedited, edited } = result;
      const before = overviews.key === unedited.key ? overviews.bytes : fetchOverview(unedited.key, signal);
      const after = edited.key === unedited.key ? before : fetchOverview(edited.key, signal);
      const found = { unedited: await before, edited: await after };
      overviews = { key: unedited.key, bytes: found.unedited };
      show(result, found, asked.example);
      problem.hidden = true;
    } catch (error) {
      if (superseded(error)) return;
      problem.textContent = error.message;
      problem.hidden = false;
    }
    looks += 1;
    holder.dataset.looks = String(looks);
    holder.dataset.state = "ready";
  }

  function show(result, found, example) {
    holder.result = result;
    answers.show(result, steps ? steps.take : null);
    steps?.show(result);
    const sites = result.sites.map((site, at) => ({ ...about.sites.find((one) => one.name === site.name), at }));
    const key = sites.map((site) => site.name).join();
    if (groups === null || groups.key !== key) {
      const roles = [...new Set(sites.map((site) => site.role))];
      groups = { key, views: new Map(roles.map((role) => [role, attentionGroup(role, sites.filter((site) => site.role === role), about.limits.tile, (head, query) => token.opened(head, query))])) };
      clear(attention).append(...[...groups.views.values()].map((view) => view.element));
    }
    for (const view of groups.views.values()) view.show(result, found);
    taken.show(result);
    clearTimeout(soon);
    soon = setTimeout(showRest, 0, result, sites, example); // the picture of all heads comes first
  }

  function showRest(result, sites, example) {
    facts.show(result, (role, layer, column) => {
      const view = groups.views.get(role);
      view.open(sites.filter((site) => site.role === role).findIndex((site) => site.layer === layer), column);
      view.element.scrollIntoView({ block: "nearest" });
    });
    token.show(result);
    relevant.show(result, example);
    if (example !== undefined) input.picture(result.picture);
  }

  holder.append(problem, element("div", { class: "live-columns" },
    element("div", { class: "live-controls" }, input.element, edits.element, taken.element),
    element("div", { class: "live-results" }, answers.element, steps?.element, attention, facts.element, token.element, relevant.element)));
  later(0);
  return () => { clearTimeout(timer); clearTimeout(soon); controller.abort(); relevant.stop(); };
}

export function liveView(about) {
  const title = element("h1", { tabindex: "-1" }, "Live model");
  const holder = element("div", { class: "live", data: { state: "busy", looks: "0" } });
  const note = element("p", { class: "note", role: "status" }, "Asking for the model…");
  const node = element("div", {}, title, note, holder);
  const controller = new AbortController();
  let stop = () => {};
  if (about.model === null) {
    note.textContent = "No model was named. Start the server with one: attrim serve --model minilm";
    return { element: node, stop };
  }
  get("/api/live", controller.signal).then((found) => {
    title.replaceChildren("Live: ", element("bdi", {}, found.model));
    const heads = found.sites.reduce((sum, site) => sum + site.heads, 0);
    note.textContent = `${found.class} with ${found.sites.length} sites and ${heads} heads; texts up to ${found.limits.tokens} tokens.`;
    stop = build(found, holder);
  }).catch((error) => { if (!superseded(error)) note.textContent = error.message; });
  return { element: node, stop: () => { controller.abort(); stop(); } };
}
