// Nodes, texts, ids, the theme and the line that screen readers hear. Text is only ever set as text.

const VECTOR = "http://www.w3.org/2000/svg";

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

// An HTML element. Properties: `class`, `data` (an object), `on` (event listeners), and attributes.
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name === "style" || name.startsWith("on")) throw new Error(`${name} is not set as an attribute`);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  return append(node, children);
}

// An SVG element; attributes only.
export function vector(tag, attributes = {}, ...children) {
  const node = document.createElementNS(VECTOR, tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    node.setAttribute(name, String(value));
  }
  return append(node, children);
}

export function clear(node) {
  node.replaceChildren();
  return node;
}

let last = 0;

// An id that no other node of this page has.
export function once(stem = "id") {
  last += 1;
  return `${stem}-${last}`;
}

let speaker = null;

// Say a line to a screen reader.
export function announce(text) {
  if (speaker === null || !speaker.isConnected) {
    speaker = element("div", { class: "visually-hidden", role: "status", "aria-live": "polite" });
    document.body.append(speaker);
  }
  speaker.textContent = text;
}

// A number as text with so many significant digits; a dash where there is none.
export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) return value.toExponential(Math.max(0, digits - 1));
  return String(Number(value.toPrecision(digits)));
}

// Numbers of a dumped chart: `{"number": "inf"}` stands for what JSON does not know, null for a gap.
export function plain(value) {
  if (value === null || value === undefined) return NaN;
  if (typeof value === "object") return { nan: NaN, inf: Infinity, "-inf": -Infinity }[value.number] ?? NaN;
  return Number(value);
}

export function plainNumbers(values) {
  return (values ?? []).map(plain);
}

// --- light and dark ---

const listeners = new Set();
let printing = false;
let watching = false;

// Whether dark colours are shown now; paper is always light.
export function dark() {
  if (printing) return false;
  const chosen = document.documentElement.dataset.theme;
  if (chosen === "dark" || chosen === "light") return chosen === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

function changed() {
  for (const listener of [...listeners]) listener();
}

function watch() {
  if (watching) return;
  watching = true;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  addEventListener("beforeprint", () => { printing = true; changed(); });
  addEventListener("afterprint", () => { printing = false; changed(); });
}

// Call back whenever the colours change; what it returns ends that.
export function onTheme(callback) {
  watch();
  listeners.add(callback);
  return () => listeners.delete(callback);
}

// A button that goes from the system's colours to light to dark; the choice is kept where the browser lets us.
export function themeSwitch() {
  const order = ["system", "light", "dark"];
  let current = "system";
  try {
    current = localStorage.getItem("attrim-theme") ?? "system";
  } catch {
    current = "system"; // a page from disk or in a frame may have no storage
  }
  const button = element("button", { type: "button", class: "button theme" });
  const apply = (name) => {
    current = order.includes(name) ? name : "system";
    if (current === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = current;
    button.textContent = `Colours: ${current}`;
    button.setAttribute("aria-label", `Colours: ${current}. Press to change.`);
    changed();
  };
  button.addEventListener("click", () => {
    apply(order[(order.indexOf(current) + 1) % order.length]);
    try {
      localStorage.setItem("attrim-theme", current);
    } catch {
      announce("This browser does not keep the choice.");
    }
  });
  apply(current);
  return button;
}

// Call `draw` when the node comes near the window, and before printing; once.
export function whenNear(node, draw) {
  let done = false;
  const run = () => {
    if (done) return;
    done = true;
    observer.disconnect();
    removeEventListener("beforeprint", run);
    draw();
  };
  const observer = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) run();
  }, { rootMargin: "400px" });
  observer.observe(node);
  addEventListener("beforeprint", run);
}

// Call `draw(width)` with the width of the node, now and whenever it changes.
export function onWidth(node, draw) {
  let known = 0;
  new ResizeObserver(() => {
    const width = Math.floor(node.clientWidth);
    if (width > 0 && width !== known) {
      known = width;
      draw(width);
    }
  }).observe(node);
}
