// Texts whose tokens have colours, images whose regions have numbers, and relevance with a slider over pruning levels.

import { announce, dark, element, number, once, onTheme, plain, plainNumbers, vector } from "./dom.js";
import { colourBar, colourBarVector, ink, paint, palette, scaleOf } from "./colours.js";

const RELEVANT = [217, 72, 1];
const DARK = 0.12; // what is left of an image where nothing is relevant, so that it can still be recognised
const WIDTH = 720;

// A relevance from 0 to 1 as an opaque ground, and the ink that can be read on it.
function relevanceColours(share, night) {
  const ground = night ? [22, 24, 28] : [255, 255, 255];
  const mixed = RELEVANT.map((part, at) => Math.round(ground[at] + (part - ground[at]) * Math.min(1, Math.max(0, share))));
  const [red, green, blue] = mixed.map((byte) => (byte / 255 <= 0.04045 ? byte / 255 / 12.92 : ((byte / 255 + 0.055) / 1.055) ** 2.4));
  return { ground: `rgb(${mixed.join(", ")})`, ink: 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff" };
}

// Tokens as they are read, and whether each continues the one before it (`##ing`).
function glued(tokens) {
  return tokens.map((token) => (token.startsWith("##") && token.length > 2 ? [token.slice(2), true] : [token, false]));
}

// --- a line of tokens ---

// Tokens in the order of the text; `colour(at)` gives ground and ink, `read(at)` the words for a token.
export function tokenLine({ tokens, colour, read, label, onPick = null }) {
  const readout = element("p", { class: "readout" }, " ");
  let cursor = -1;
  let spans = [];
  const line = element("p", { class: "tokens", tabindex: "0", role: "group", "aria-roledescription": "text", "aria-label": `${label}: arrow keys read the tokens` });
  const say = (at, speak = false) => {
    readout.textContent = read(at);
    if (speak) announce(read(at));
  };
  const move = (at) => {
    spans[cursor]?.classList.remove("current");
    cursor = Math.min(spans.length - 1, Math.max(0, at));
    spans[cursor].classList.add("current");
    say(cursor, true);
  };
  const placeOf = (event) => {
    const span = event.target.closest?.("[data-at]");
    return span ? Number(span.dataset.at) : -1;
  };
  line.addEventListener("pointerover", (event) => { if (placeOf(event) >= 0) say(placeOf(event)); });
  line.addEventListener("click", (event) => { if (placeOf(event) >= 0) { move(placeOf(event)); onPick?.(placeOf(event)); } });
  line.addEventListener("blur", () => { spans[cursor]?.classList.remove("current"); });
  line.addEventListener("keydown", (event) => {
    if (event.key === "ArrowRight") move(cursor + 1);
    else if (event.key === "ArrowLeft") move(cursor - 1);
    else if (event.key === "Home") move(0);
    else if (event.key === "End") move(spans.length - 1);
    else if ((event.key === "Enter" || event.key === " ") && cursor >= 0 && onPick) onPick(cursor);
    else return;
    event.preventDefault();
  });
  const recolour = () => spans.forEach((span, at) => {
    const found = colour(at);
    span.style.backgroundColor = found.ground;
    span.style.color = found.ink;
  });
  const show = (next = {}) => {
    if (next.tokens) tokens = next.tokens;
    if (next.colour) colour = next.colour;
    if (next.read) read = next.read;
    if (next.tokens || !spans.length) {
      spans = [];
      const nodes = [];
      glued(tokens).forEach(([text, continues], at) => {
        if (at > 0 && !continues) nodes.push(" ");
        // A token of another writing direction, or with marks of direction, must not turn its neighbours round.
        const span = element("bdi", { class: "token", data: { at } }, text || "␣");
        spans.push(span);
        nodes.push(span);
      });
      line.replaceChildren(...nodes);
      cursor = -1;
    }
    recolour();
  };
  show();
  onTheme(recolour);
  return { element: element("div", { class: "token-line" }, line, readout), show };
}

// Lay tokens out as a picture: a group, and how high it is.
function tokenVector(tokens, colourOf, width, top) {
  const node = vector("g", { "font-family": "ui-monospace, Menlo, Consolas, monospace", "font-size": 13 });
  let [x, y] = [10, top];
  glued(tokens).forEach(([text, continues], at) => {
    const wide = 7.9 * [...(text || "␣")].length + 6;
    x += continues ? 0 : 4;
    if (x + wide > width - 10 && x > 14) [x, y] = [10, y + 22];
    const found = colourOf(at);
    node.append(vector("rect", { x, y, width: wide, height: 19, rx: 3, fill: found.ground }), vector("text", { x: x + 3, y: y + 14, fill: found.ink }, text || "␣"));
    x += wide;
  });
  return { node, bottom: y + 24 };
}

function pictureOf(height, title) {
  const colours = palette(false);
  const svg = vector("svg", { width: WIDTH, height, viewBox: `0 0 ${WIDTH} ${height}`, "font-family": "system-ui, sans-serif" });
  svg.append(vector("rect", { width: "100%", height: "100%", fill: colours.ground }), vector("text", { x: 10, y: 18, "font-size": 13, "font-weight": 600, fill: colours.ink }, title));
  return svg;
}

export function tokenStrip(chart) {
  const values = plainNumbers(chart.values);
  const scale = scaleOf({ low: chart.low === undefined ? null : plain(chart.low), high: chart.high === undefined ? null : plain(chart.high), diverging: chart.diverging ?? false }, values);
  const colour = (at) => ({ ground: paint(scale.name, scale.share(values[at])), ink: ink(scale.name, scale.share(values[at])) });
  const line = tokenLine({ tokens: chart.tokens, colour, label: chart.title || chart.name, read: (at) => `${at} “${chart.tokens[at]}”: ${number(values[at], 4)}` });
  const node = element("div", {}, line.element, colourBar(scale, chart.label ?? "").element);
  const svg = () => {
    const laid = tokenVector(chart.tokens, colour, WIDTH, 28);
    const picture = pictureOf(laid.bottom + 60, chart.title || chart.name);
    picture.append(laid.node, colourBarVector(scale, chart.label ?? "", 10, laid.bottom + 20, 240, palette(false)));
    return picture;
  };
  return { element: node, svg, rows: () => [["position", "token", chart.label || "value"], ...chart.tokens.map((token, at) => [at, token, values[at]])] };
}

// --- images ---

function drawn(url, width, height) {
  const canvas = element("canvas", { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#ebebeb";
  context.fillRect(0, 0, width, height);
  if (!url) return Promise.resolve(canvas);
  const picture = new Image();
  picture.src = url;
  return picture.decode().then(() => {
    context.imageSmoothingEnabled = picture.naturalWidth * 3 > width; // small pictures keep their pixels
    context.drawImage(picture, 0, 0, width, height);
    return canvas;
  });
}

// An image on which the pointer and the arrow keys find regions; `region(x, y)` gives the number of one or -1.
function imageBoard({ width, height, label, count, region, read }) {
  const canvas = element("canvas", { class: "image", width, height, role: "img", "aria-label": label });
  const readout = element("p", { class: "readout" }, " ");
  const holder = element("div", { class: "image-holder", tabindex: "0", role: "group", "aria-label": `${label}: arrow keys read the regions` }, canvas);
  let cursor = -1;
  holder.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const at = region(((event.clientX - box.left) / box.width) * width, ((event.clientY - box.top) / box.height) * height);
    readout.textContent = at >= 0 ? read(at) : " ";
  });
  holder.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (by === undefined || count === 0) return;
    cursor = (cursor + by + count) % count;
    readout.textContent = read(cursor);
    announce(read(cursor));
    event.preventDefault();
  });
  return { element: element("div", {}, holder, readout), canvas };
}

function sizeOf(chart) {
  const factor = Math.min(8, Math.max(480 / Math.max(chart.width, chart.height), 0.05));
  return { width: Math.max(1, Math.round(chart.width * factor)), height: Math.max(1, Math.round(chart.height * factor)), factor };
}

function smallestBox(boxes, x, y) {
  let [best, least] = [-1, Infinity];
  boxes.forEach(([left, top, right, bottom], at) => {
    const size = (right - left) * (bottom - top);
    if (x >= left && x <= right && y >= top && y <= bottom && size < least) [best, least] = [at, size];
  });
  return best;
}

export function imageRegions(chart) {
  const { width, height, factor } = sizeOf(chart);
  const values = plainNumbers(chart.values);
  const boxes = chart.boxes.map((box) => box.map((end) => plain(end) * factor));
  const scale = scaleOf({ low: chart.low === undefined ? null : plain(chart.low), high: chart.high === undefined ? null : plain(chart.high), diverging: chart.diverging ?? false }, values);
  const name = (at) => (chart.labels ?? [])[at] || `region ${at}`;
  const board = imageBoard({ width, height, label: chart.title || chart.name, count: boxes.length, region: (x, y) => smallestBox(boxes, x, y), read: (at) => `${name(at)}: ${number(values[at], 4)}` });
  const ready = drawn(chart.image, width, height).then((ground) => {
    const context = board.canvas.getContext("2d");
    context.drawImage(ground, 0, 0);
    boxes.forEach(([left, top, right, bottom], at) => {
      const share = scale.share(values[at]);
      const strength = chart.diverging ? 2 * Math.abs(share - 0.5) : share;
      context.globalAlpha = 0.35 + 0.65 * strength;
      context.strokeStyle = paint(scale.name, share);
      context.lineWidth = 1 + 4 * strength;
      context.strokeRect(left, top, right - left, bottom - top);
    });
    context.globalAlpha = 1;
  });
  const node = element("div", {}, board.element, colourBar(scale, chart.label ?? "").element);
  const svg = () => {
    const picture = pictureOf(height + 90, chart.title || chart.name);
    picture.append(vector("image", { x: 10, y: 28, width, height, href: board.canvas.toDataURL("image/png") }), colourBarVector(scale, chart.label ?? "", 10, height + 52, 240, palette(false)));
    return picture;
  };
  return { element: node, svg, ready, rows: () => [["region", "label", "left", "top", "right", "bottom", chart.label || "value"], ...values.map((value, at) => [at, name(at), ...chart.boxes[at].map(plain), value])] };
}

// --- relevance ---

function endsOf(lists, floor = null) {
  let [low, high] = floor === null ? [Infinity, -Infinity] : [floor, floor];
  for (const list of lists) {
    for (const value of list) {
      if (!Number.isFinite(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low > high ? [0, 0] : [low, high];
}

function scaled(value, [low, high]) {
  if (!(high > low)) return 0;
  return Math.min(1, Math.max(0, ((Number.isFinite(value) ? value : low) - low) / (high - low)));
}

// How much of each pixel is left, 0 to 1, as `attrim.core.painting` has it.
function maskOf(chart, regions, ends, width, height, factor) {
  const mask = new Float32Array(width * height);
  if ((chart.grid ?? []).length) {
    const [down, across] = chart.grid;
    const own = ends ?? endsOf([regions]);
    const at = (row, column) => regions[Math.min(down - 1, Math.max(0, row)) * across + Math.min(across - 1, Math.max(0, column))];
    for (let y = 0; y < height; y += 1) {
      const row = ((y + 0.5) * down) / height - 0.5;
      const above = Math.floor(row);
      for (let x = 0; x < width; x += 1) {
        const column = ((x + 0.5) * across) / width - 0.5;
        const before = Math.floor(column);
        const [fy, fx] = [row - above, column - before];
        const value = (1 - fy) * ((1 - fx) * at(above, before) + fx * at(above, before + 1)) + fy * ((1 - fx) * at(above + 1, before) + fx * at(above + 1, before + 1));
        mask[y * width + x] = scaled(value, own);
      }
    }
    return mask;
  }
  const first = (chart.normalise ?? "mask") === "scores";
  const own = ends ?? endsOf([regions]);
  const numbers = regions.map((value) => (first ? scaled(value, own) : Number.isFinite(value) ? value : 0));
  chart.boxes.forEach((box, at) => {
    const [left, top, right, bottom] = box.map((end) => plain(end) * factor);
    for (let y = Math.max(0, Math.floor(top)); y < Math.min(height, Math.ceil(bottom)); y += 1) {
      for (let x = Math.max(0, Math.floor(left)); x < Math.min(width, Math.ceil(right)); x += 1) {
        if (numbers[at] > mask[y * width + x]) mask[y * width + x] = numbers[at];
      }
    }
  });
  if (!first) {
    const range = ends ?? endsOf([mask]);
    for (let at = 0; at < mask.length; at += 1) mask[at] = scaled(mask[at], range);
  }
  return mask;
}

// Which tokens and regions an answer comes from; a slider goes through the levels of pruning.
export function relevance(chart) {
  const levels = chart.levels.map((level) => ({ label: level.label, answer: level.answer, texts: (level.texts ?? []).map(plainNumbers), regions: level.regions ? plainNumbers(level.regions) : null }));
  const shared = chart.shared ?? true;
  const together = endsOf(levels.flatMap((level) => level.texts), 0);
  const pictured = Boolean(chart.boxes || (chart.grid ?? []).length);
  let current = 0;
  const share = (text, at) => scaled(levels[current].texts[text][at], shared ? together : endsOf(levels[current].texts));
  const lines = (chart.texts ?? []).map((words, text) => tokenLine({
    tokens: words.tokens, label: words.label || "text", colour: (at) => relevanceColours(share(text, at), dark()),
    read: (at) => `${at} “${words.tokens[at]}”: relevance ${number(levels[current].texts[text][at], 4)}`,
  }));
  const answer = element("output", { class: "answer" });
  const id = once("level");
  const slider = element("input", { type: "range", id, min: 0, max: levels.length - 1, step: 1, value: 0 });
  let board = null;
  let ground = null;
  let size = null;
  if (pictured) {
    size = sizeOf(chart);
    const boxes = chart.boxes ? chart.boxes.map((box) => box.map((end) => plain(end) * size.factor)) : null;
    const region = (x, y) => (boxes ? smallestBox(boxes, x, y) : Math.floor((y / size.height) * chart.grid[0]) * chart.grid[1] + Math.floor((x / size.width) * chart.grid[1]));
    board = imageBoard({ ...size, label: `Image of ${chart.title || chart.name}`, count: levels[0].regions.length, region, read: (at) => `${boxes ? "region" : "patch"} ${at}: relevance ${number(levels[current].regions[at], 4)}` });
  }
  const paintImage = () => {
    if (!ground) return;
    const { width, height, factor } = size;
    const floor = (chart.normalise ?? "mask") === "mask" && !(chart.grid ?? []).length ? 0 : null;
    const ends = shared ? endsOf(levels.map((level) => level.regions), floor) : null;
    const mask = maskOf(chart, levels[current].regions, ends, width, height, factor);
    const image = ground.getContext("2d").getImageData(0, 0, width, height);
    for (let at = 0; at < mask.length; at += 1) {
      const left = DARK + (1 - DARK) * mask[at];
      for (let part = 0; part < 3; part += 1) image.data[4 * at + part] *= left;
    }
    const context = board.canvas.getContext("2d");
    context.putImageData(image, 0, 0);
    context.strokeStyle = "#56b4e9";
    context.lineWidth = 2;
    for (const at of chart.relevant ?? []) {
      if (!chart.boxes) continue;
      const [left, top, right, bottom] = chart.boxes[at].map((end) => plain(end) * factor);
      context.strokeRect(left, top, right - left, bottom - top);
    }
  };
  const show = (at) => {
    current = at;
    const level = levels[at];
    const changed = level.answer !== levels[0].answer;
    slider.value = String(at);
    slider.setAttribute("aria-valuetext", `${level.label}: ${level.answer}`);
    answer.textContent = `${level.label}: ${level.answer}${changed ? " (changed)" : ""}`;
    answer.classList.toggle("changed", changed);
    for (const line of lines) line.show();
    paintImage();
  };
  slider.addEventListener("input", () => show(Number(slider.value)));
  const ready = pictured ? drawn(chart.image, size.width, size.height).then((canvas) => { ground = canvas; paintImage(); }) : Promise.resolve();
  const node = element("div", { class: "relevance" },
    chart.explained ? element("p", {}, "Explained answer: ", element("strong", {}, chart.explained)) : null,
    (chart.facts ?? []).map((fact) => element("p", { class: "note" }, fact)),
    levels.length > 1 ? element("div", { class: "scrubber" }, element("label", { for: id }, "Heads left out"), slider, answer) : element("div", {}, answer),
    board?.element,
    lines.map((line, at) => element("div", {}, chart.texts[at].label ? element("p", { class: "panel-title" }, chart.texts[at].label) : null, line.element)));
  show(0);
  const svg = () => {
    const parts = [];
    let top = 44;
    if (board) {
      parts.push(vector("image", { x: 10, y: top, width: size.width, height: size.height, href: board.canvas.toDataURL("image/png") }));
      top += size.height + 8;
    }
    (chart.texts ?? []).forEach((words, text) => {
      const laid = tokenVector(words.tokens, (at) => relevanceColours(share(text, at), false), WIDTH, top);
      parts.push(laid.node);
      top = laid.bottom + 8;
    });
    const picture = pictureOf(top + 6, chart.title || chart.name);
    picture.append(vector("text", { x: 10, y: 36, "font-size": 12, fill: palette(false).quiet }, answer.textContent), ...parts);
    return picture;
  };
  const rows = () => [["level", "answer", "part", "position", "token", "relevance"], ...levels.flatMap((level) => [
    ...level.texts.flatMap((values, text) => values.map((value, at) => [level.label, level.answer, chart.texts[text].label || `text ${text}`, at, chart.texts[text].tokens[at], value])),
    ...(level.regions ?? []).map((value, at) => [level.label, level.answer, "region", at, "", value])])];
  return { element: node, svg, rows, ready, show };
}
