// Matrices on canvas: heat maps, all heads as thumbnails, one number for every head. Hover and cursor make no nodes.

import { announce, dark, element, number, once, onTheme, onWidth, plain, vector } from "./dom.js";
import { colourBar, colourBarVector, ink, paint, palette, ramp, scaleOf } from "./colours.js";
import { gridOf, unpack } from "./packed.js";

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
const LETTERS = 16; // of a name beside a matrix
const SMALL = 10; // pixels: cells that are smaller have no name of their own

function short(text) {
  const letters = [...String(text)];
  return letters.length > LETTERS ? `${letters.slice(0, LETTERS - 1).join("")}…` : letters.join("");
}

// --- a board of cells ---

// Cells in rows and columns on one canvas, with names beside them, a cursor and one line that says what it is on.
class Board {
  // paint(context, place, pixels): draws all cells; place has left, top, wide, high (of a cell) and the numbers of rows and columns.
  // read(row, column): what stands there, in words. whole: it is to fit the window, and can be magnified. framed: cells can be marked.
  constructor({ rows, columns, rowNames, columnNames, paint: painted, read, open = null, label, xLabel = "", yLabel = "", most = 44, least = 3, square = true, namesAbove = false, whole = false, framed = false }) {
    Object.assign(this, { rows, columns, rowNames, columnNames, painted, read, open, label, xLabel, yLabel, most, least, square, namesAbove, whole, framed });
    this.still = null;
    this.row = 0;
    this.column = 0;
    this.zoom = 1;
    this.marks = [];
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.cursor = element("div", { class: "cursor", hidden: true, "aria-hidden": "true" });
    this.area = element("div", { class: "board-area" }, this.canvas, this.cursor);
    this.holder = element("div", { class: "board", tabindex: "0", role: "group", "aria-roledescription": "matrix", "aria-label": this.spoken() }, this.area);
    this.readout = element("p", { class: "readout" }, " ");
    this.holder.addEventListener("pointermove", (event) => this.hover(event));
    this.holder.addEventListener("pointerleave", () => { if (document.activeElement !== this.holder) this.cursor.hidden = true; });
    this.holder.addEventListener("click", (event) => { if (this.hover(event)) this.open?.(this.row, this.column); });
    this.holder.addEventListener("keydown", (event) => this.key(event));
    this.zooms = whole ? this.zoomChoice() : null;
    this.element = element("div", { class: "board-frame" }, this.holder, element("div", { class: "row" }, this.readout, this.zooms));
    onWidth(this.element, (width) => { this.width = width; this.redraw(); });
    onTheme(() => this.redraw());
  }

  spoken() {
    return `${this.label}: ${this.rows} rows, ${this.columns} columns; arrow keys move${this.open ? ", Enter opens" : ""}`;
  }

  zoomChoice() {
    const id = once("zoom");
    const choice = element("select", { id }, ...[1, 2, 4, 8].map((factor) => element("option", { value: factor }, `${factor} ×`)));
    choice.addEventListener("change", () => { this.zoom = Number(choice.value); this.redraw(); });
    return element("span", { class: "field inline" }, element("label", { for: id }, "Zoom"), choice);
  }

  resize(rows, columns, rowNames, columnNames) {
    if (rows === this.rows && columns === this.columns && rowNames === this.rowNames && columnNames === this.columnNames) return;
    Object.assign(this, { rows, columns, rowNames, columnNames });
    this.row = Math.min(this.row, rows - 1);
    this.column = Math.min(this.column, columns - 1);
    this.holder.setAttribute("aria-label", this.spoken());
  }

  // Where cells and names are, for a width in pixels.
  placing(width, zoom = 1, height = 0.72 * innerHeight) {
    const longestRow = Math.max(1, ...this.rowNames.map((name) => short(name).length));
    const longestColumn = Math.max(1, ...this.columnNames.map((name) => short(name).length));
    const left = Math.ceil(6.4 * longestRow + (this.yLabel ? 26 : 10));
    const room = Math.max(40, width - left - 8);
    const fitting = this.whole ? Math.max(160, height) / this.rows : Infinity;
    const wide = zoom * Math.max(Math.min(this.most, room / this.columns, fitting), Math.min(this.least, room / this.columns));
    const high = this.square ? wide : Math.min(zoom * this.most, Math.max(22, 0.8 * wide));
    const turned = 6.4 * longestColumn + 4 > wide;
    const names = this.columnNames.length ? (turned ? Math.ceil(6.2 * longestColumn + 8) : 16) : 0;
    const top = (this.namesAbove ? names : 4) + (this.namesAbove && this.xLabel ? 16 : 0);
    const total = { width: Math.max(left + wide * this.columns + 8, Math.min(width, left + 6.4 * this.xLabel.length + 8)), height: top + high * this.rows + (this.namesAbove ? 4 : names + (this.xLabel ? 18 : 4)) };
    return { left, top, wide, high, turned, names, rows: this.rows, columns: this.columns, ...total };
  }

  // Names beside the cells and the labels of both axes, as texts with places.
  texts(place) {
    const found = [];
    const { left, top, wide, high, turned } = place;
    const bottom = top + high * this.rows;
    const rowStep = Math.max(1, Math.ceil(SMALL / high));
    const columnStep = Math.max(1, Math.ceil((turned ? SMALL : 6.4 * 2) / wide));
    this.rowNames.forEach((name, at) => {
      if (at % rowStep === 0) found.push({ text: short(name), x: left - 4, y: top + (at + 0.5) * high, anchor: "end" });
    });
    this.columnNames.forEach((name, at) => {
      if (at % columnStep !== 0) return;
      const x = left + (at + 0.5) * wide;
      if (this.namesAbove) found.push({ text: short(name), x, y: top - 8, anchor: turned ? "start" : "middle", angle: turned ? -90 : 0 });
      else found.push({ text: short(name), x, y: bottom + (turned ? 4 : 10), anchor: turned ? "end" : "middle", angle: turned ? -90 : 0 });
    });
    if (this.xLabel) found.push({ text: this.xLabel, x: left, y: this.namesAbove ? 8 : place.height - 8, anchor: "start", strong: true });
    if (this.yLabel) found.push({ text: this.yLabel, x: 9, y: top + (high * this.rows) / 2, anchor: "middle", angle: -90, strong: true });
    return found;
  }

  redraw() {
    if (!this.width || !this.rows || !this.columns) return;
    const place = this.placing(this.width, this.zoom);
    this.place = place;
    const colours = palette(dark());
    const fine = Math.min(2, devicePixelRatio || 1);
    const { canvas } = this;
    canvas.width = Math.ceil(place.width * fine);
    canvas.height = Math.ceil(place.height * fine);
    canvas.style.width = `${place.width}px`;
    canvas.style.height = `${place.height}px`;
    const context = canvas.getContext("2d");
    context.setTransform(fine, 0, 0, fine, 0, 0);
    context.clearRect(0, 0, place.width, place.height);
    this.painted(context, place, fine);
    context.font = `11px ${FONT}`;
    context.textBaseline = "middle";
    for (const { text, x, y, anchor, angle = 0, strong = false } of this.texts(place)) {
      context.save();
      context.translate(x, y);
      if (angle) context.rotate((angle * Math.PI) / 180);
      context.fillStyle = strong ? colours.ink : colours.quiet;
      context.textAlign = { start: "left", middle: "center", end: "right" }[anchor];
      context.fillText(text, 0, 0);
      context.restore();
    }
    this.still = null;
    this.drawMarks();
    this.moveCursor();
  }

  // Frames around some cells; the cells are kept as a picture, so that other frames do not draw them again.
  mark(places) {
    this.marks = places;
    if (this.place) this.drawMarks();
  }

  drawMarks() {
    if (!this.framed) return;
    const { canvas, place } = this;
    const context = canvas.getContext("2d");
    const fine = canvas.width / place.width;
    context.setTransform(1, 0, 0, 1, 0, 0);
    if (this.still === null) {
      this.still = element("canvas", { width: canvas.width, height: canvas.height });
      this.still.getContext("2d").drawImage(canvas, 0, 0);
    } else {
      context.clearRect(0, 0, canvas.width, canvas.height);
      context.drawImage(this.still, 0, 0);
    }
    context.setTransform(fine, 0, 0, fine, 0, 0);
    context.strokeStyle = dark() ? "#f0b429" : "#d55e00";
    context.lineWidth = 2;
    for (const [row, column] of this.marks) context.strokeRect(place.left + column * place.wide + 1, place.top + row * place.high + 1, place.wide - 2, place.high - 2);
  }

  moveCursor() {
    if (!this.place) return;
    const { left, top, wide, high } = this.place;
    const style = this.cursor.style;
    style.transform = `translate(${left + this.column * wide - 1}px, ${top + this.row * high - 1}px)`;
    style.width = `${Math.max(3, wide)}px`;
    style.height = `${Math.max(3, high)}px`;
  }

  // Put the cursor on a cell and say what it is.
  to(row, column, speak = false) {
    this.row = Math.min(this.rows - 1, Math.max(0, row));
    this.column = Math.min(this.columns - 1, Math.max(0, column));
    this.cursor.hidden = false;
    this.moveCursor();
    const text = this.read(this.row, this.column);
    this.readout.textContent = text;
    if (speak) announce(text);
  }

  hover(event) {
    if (!this.place) return false;
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - this.place.left) / this.place.wide);
    const row = Math.floor((event.clientY - box.top - this.place.top) / this.place.high);
    if (row < 0 || column < 0 || row >= this.rows || column >= this.columns) return false;
    this.to(row, column);
    return true;
  }

  key(event) {
    const far = event.shiftKey ? 10 : 1;
    const steps = { ArrowUp: [-far, 0], ArrowDown: [far, 0], ArrowLeft: [0, -far], ArrowRight: [0, far], Home: [0, -this.columns], End: [0, this.columns], PageUp: [-10, 0], PageDown: [10, 0] };
    if (steps[event.key]) {
      this.to(this.row + steps[event.key][0], this.column + steps[event.key][1], true);
      this.follow();
    } else if (event.key === "Enter" || event.key === " ") {
      this.to(this.row, this.column, true);
      this.open?.(this.row, this.column);
    } else return;
    event.preventDefault();
  }

  // Scroll so that the cursor can be seen.
  follow() {
    const { left, top, wide, high } = this.place;
    const [x, y] = [left + this.column * wide, top + this.row * high];
    const { holder } = this;
    if (x < holder.scrollLeft || x + wide > holder.scrollLeft + holder.clientWidth) holder.scrollLeft = x - holder.clientWidth / 2;
    if (y < holder.scrollTop || y + high > holder.scrollTop + holder.clientHeight) holder.scrollTop = y - holder.clientHeight / 2;
  }

  // A standalone picture: cells as an image, names as text.
  vector({ title, scale, label, width = 720 }) {
    const colours = palette(false);
    const place = this.placing(width, 1, width);
    const canvas = element("canvas", { width: Math.ceil(place.wide * place.columns), height: Math.ceil(place.high * place.rows) });
    const fine = Math.max(1, Math.min(4, 1200 / canvas.width));
    canvas.width = Math.round(canvas.width * fine);
    canvas.height = Math.round(canvas.height * fine);
    const context = canvas.getContext("2d");
    context.setTransform(fine, 0, 0, fine, 0, 0);
    this.painted(context, { ...place, left: 0, top: 0 }, fine);
    const high = 28 + place.height + (scale ? 48 : 6);
    const svg = vector("svg", { width: Math.max(place.width, 320), height: high, viewBox: `0 0 ${Math.max(place.width, 320)} ${high}`, "font-family": FONT });
    svg.append(vector("rect", { width: "100%", height: "100%", fill: colours.ground }),
      vector("text", { x: 8, y: 18, "font-size": 13, "font-weight": 600, fill: colours.ink }, title),
      vector("image", { x: place.left, y: 28 + place.top, width: place.wide * place.columns, height: place.high * place.rows, href: canvas.toDataURL("image/png"), preserveAspectRatio: "none" }));
    for (const { text, x, y, anchor, angle = 0, strong = false } of this.texts(place)) {
      svg.append(vector("text", { x, y: y + 28, "font-size": 11, "text-anchor": anchor, "dominant-baseline": "middle", fill: strong ? colours.ink : colours.quiet, transform: angle ? `rotate(${angle} ${x} ${y + 28})` : null }, text));
    }
    if (scale) svg.append(colourBarVector(scale, label, place.left, 28 + place.height + 16, Math.min(240, place.width - place.left), colours));
    return svg;
  }
}

// --- pixels ---

// Places on a colour scale, of which `step x step` neighbours become one: the largest, or the farthest from the middle.
function pooled(levels, rows, columns, step, diverging) {
  if (step <= 1) return { levels, rows, columns };
  const [down, across] = [Math.ceil(rows / step), Math.ceil(columns / step)];
  const result = new Uint8Array(down * across);
  if (diverging) result.fill(128);
  for (let row = 0; row < rows; row += 1) {
    const base = Math.floor(row / step) * across;
    for (let column = 0; column < columns; column += 1) {
      const at = base + Math.floor(column / step);
      const level = levels[row * columns + column];
      if (diverging ? Math.abs(level - 128) > Math.abs(result[at] - 128) : level > result[at]) result[at] = level;
    }
  }
  return { levels: result, rows: down, columns: across };
}

let scratch = null;

// Draw a matrix of places on a colour scale into a rectangle; cells have sharp edges.
function drawLevels(context, found, name, x, y, width, height) {
  scratch ??= element("canvas");
  if (scratch.width !== found.columns || scratch.height !== found.rows) {
    scratch.width = found.columns;
    scratch.height = found.rows;
  }
  const own = scratch.getContext("2d", { willReadFrequently: true });
  const image = own.createImageData(found.columns, found.rows);
  const colours = ramp(name);
  const { data } = image;
  for (let at = 0; at < found.levels.length; at += 1) {
    const level = 3 * found.levels[at];
    data[4 * at] = colours[level];
    data[4 * at + 1] = colours[level + 1];
    data[4 * at + 2] = colours[level + 2];
    data[4 * at + 3] = 255;
  }
  own.putImageData(image, 0, 0);
  context.imageSmoothingEnabled = found.rows > height || found.columns > width;
  context.drawImage(scratch, 0, 0, found.columns, found.rows, x, y, width, height);
}

function scaleFor(kind, grid, index, { low = null, high = null, bar = 0 } = {}) {
  const [smallest, largest] = grid.ends(index);
  if (kind === "above") {
    const scale = scaleOf({ low: 0, high: 1 });
    return { ...scale, share: (value) => (value > bar ? 1 : 0) };
  }
  if (kind === "diverging") return scaleOf({ low, high, diverging: true }, [smallest, largest]);
  if (kind === "linear") return scaleOf({ low, high }, [smallest, largest]);
  return scaleOf({ low: low ?? 0, high: high ?? (largest > 0 ? largest : 1), root: true });
}

// --- one matrix ---

// The attention of queries (down) to keys (across), or any other pairs.
export function heatmap({ grid, index = 0, queries = [], keys = [], scale: kind = "root", low = null, high = null, bar = 0, label = "attention weight", xLabel = "key", yLabel = "query", title = "", onPick = null }) {
  let scale = scaleFor(kind, grid, index, { low, high, bar });
  const name = (names, at, what) => (names[at] === undefined ? `${what} ${at}` : `${what} ${at} “${names[at]}”`);
  const paintAll = (context, place, fine) => {
    const step = Math.max(1, Math.ceil(1 / (place.wide * fine)));
    const found = pooled(grid.levels(index, scale), grid.rows, grid.columns, step, kind === "diverging");
    drawLevels(context, found, scale.name, place.left, place.top, place.wide * step * found.columns, place.high * step * found.rows);
  };
  const board = new Board({
    rows: grid.rows, columns: grid.columns, rowNames: queries.length ? queries : numbers(grid.rows), columnNames: keys.length ? keys : numbers(grid.columns),
    label: title || label, xLabel, yLabel, most: 28, least: 0.2, whole: true, paint: paintAll,
    read: (row, column) => `${name(queries, row, yLabel)} → ${name(keys, column, xLabel)}: ${number(grid.value(index, row, column), 4)}`,
    open: onPick ? (row, column) => onPick({ row, column, value: grid.value(index, row, column) }) : null,
  });
  const strip = colourBar(scale, label);
  if (kind === "above") strip.element.hidden = true;
  const node = element("div", { class: "heatmap" }, board.element, strip.element, kind === "above" ? element("p", { class: "note" }, `Bright cells are above ${number(bar)}.`) : null);
  const show = (next) => {
    if (next.grid) grid = next.grid;
    if (next.index !== undefined) index = next.index;
    if (next.queries) queries = next.queries;
    if (next.keys) keys = next.keys;
    if (next.title !== undefined) board.label = title = next.title;
    if (next.low !== undefined) low = next.low;
    if (next.high !== undefined) high = next.high;
    board.resize(grid.rows, grid.columns, queries.length ? queries : numbers(grid.rows), keys.length ? keys : numbers(grid.columns));
    scale = scaleFor(kind, grid, index, { low, high, bar });
    strip.show(scale, label);
    board.redraw();
  };
  const rows = () => [[`${yLabel} \\ ${xLabel}`, ...(keys.length ? keys : numbers(grid.columns))],
    ...Array.from({ length: grid.rows }, (_, row) => [queries[row] ?? row, ...Array.from({ length: grid.columns }, (_, column) => grid.value(index, row, column))])];
  return { element: node, show, rows, pick: (row, column) => board.to(row, column), svg: () => board.vector({ title, scale: kind === "above" ? null : scale, label }), board };
}

const counted = new Map();

// "0", "1", …; the same array whenever the length is the same, so that nothing is laid out again.
function numbers(length) {
  if (!counted.has(length)) counted.set(length, Array.from({ length }, (_, at) => String(at)));
  return counted.get(length);
}

// --- all matrices of a model ---

// Thumbnails of all heads on one canvas.
export function overview({ rows, columns, grid, present = null, label = "heads", open = null, marked = [] }) {
  let together = false;
  const there = (at) => present === null || present[at];
  const paintAll = (context, place, fine) => {
    const common = together ? scaleOf({ low: 0, high: largestOf(grid, there) || 1, root: true }) : null;
    const gap = place.wide > 14 ? 2 : 1;
    const inside = place.wide - gap;
    const step = Math.max(1, Math.floor(Math.max(grid.rows, grid.columns) / Math.max(1, inside * fine)));
    for (let at = 0; at < rows.length * columns.length; at += 1) {
      if (!there(at)) continue;
      const scale = common ?? scaleFor("root", grid, at);
      const found = pooled(grid.levels(at, scale), grid.rows, grid.columns, step, false);
      drawLevels(context, found, scale.name, place.left + (at % columns.length) * place.wide, place.top + Math.floor(at / columns.length) * place.high, inside, place.high - gap);
    }
  };
  const board = new Board({
    rows: rows.length, columns: columns.length, rowNames: rows, columnNames: columns, label, xLabel: "head", most: 72, least: 14, namesAbove: true, framed: true, paint: paintAll, open,
    read: (row, column) => {
      const at = row * columns.length + column;
      if (!there(at)) return `${rows[row]}: there is no head ${columns[column]}`;
      return `${rows[row]}, head ${columns[column]}: largest weight ${number(grid.ends(at)[1])}${open ? " (open it with Enter or a click)" : ""}`;
    },
  });
  board.marks = marked;
  const id = once("scale");
  const choice = element("select", { id }, element("option", { value: "own" }, "each head to its own largest weight"), element("option", { value: "all" }, "one scale for all heads"));
  choice.addEventListener("change", () => { together = choice.value === "all"; board.redraw(); });
  const node = element("div", { class: "overview" }, element("div", { class: "field inline" }, element("label", { for: id }, "Colours"), choice), board.element);
  const show = (next) => {
    if (next.grid) grid = next.grid;
    if (next.present !== undefined) present = next.present;
    if (next.rows) rows = next.rows;
    if (next.columns) columns = next.columns;
    board.resize(rows.length, columns.length, rows, columns);
    board.redraw();
  };
  const mark = (places) => board.mark(places);
  const exported = () => {
    const found = [["row", "head", "query cell", "key cell", "weight"]];
    for (let at = 0; at < rows.length * columns.length; at += 1) {
      if (!there(at)) continue;
      for (let row = 0; row < grid.rows; row += 1) {
        for (let column = 0; column < grid.columns; column += 1) found.push([rows[Math.floor(at / columns.length)], columns[at % columns.length], row, column, grid.value(at, row, column)]);
      }
    }
    return found;
  };
  return { element: node, show, mark, board, rows: exported, svg: () => board.vector({ title: label, scale: null, label: "" }) };
}

function largestOf(grid, there) {
  let largest = 0;
  for (let at = 0; at < grid.count; at += 1) if (there(at)) largest = Math.max(largest, grid.ends(at)[1]);
  return largest;
}

// The overview, and below it the head that is open at full size.
export function explorer({ rows, columns, thumbnails, present = null, full, queries = [], keys = [], label = "attention weight", title = "heads", pooledBy = 1, marked = [] }) {
  let current = null;
  let turn = 0;
  let map = null;
  const heading = element("h4", { class: "open-head" });
  const note = element("p", { class: "note" });
  const holder = element("div");
  const there = (row, column) => present === null || present[row * columns.length + column];
  const step = (by) => {
    const count = rows.length * columns.length;
    let at = current.row * columns.length + current.column;
    do at = (at + by + count) % count; while (!there(Math.floor(at / columns.length), at % columns.length));
    open(Math.floor(at / columns.length), at % columns.length);
  };
  const button = (text, spoken, action) => element("button", { type: "button", class: "button small", "aria-label": spoken, on: { click: action } }, text);
  const opened = element("section", { class: "opened", hidden: true, "aria-label": "Head at full size" },
    element("div", { class: "row" }, heading, button("‹ previous", "Previous head", () => step(-1)), button("next ›", "Next head", () => step(1)), button("close", "Close the head", () => close())),
    holder, note);
  const view = overview({ rows, columns, grid: thumbnails, present, label: title, open, marked });

  function close() {
    opened.hidden = true;
    current = null;
    view.mark(marked);
    view.board.holder.focus();
  }

  async function open(row, column) {
    if (!there(row, column)) return;
    turn += 1;
    const mine = turn;
    current = { row, column };
    const known = full(row, column);
    const found = known instanceof Promise ? await known : known;
    if (mine !== turn) return; // another head was opened while this one was on its way
    const name = `${rows[row]}, head ${columns[column]}`;
    const index = row * columns.length + column;
    const shown = found ?? { grid: thumbnails, index };
    const named = found !== null;
    heading.textContent = name;
    note.textContent = named || pooledBy <= 1 ? "" : `Each cell is the largest of ${pooledBy} × ${pooledBy} neighbours: this head is not embedded in full (attrim report --all embeds all).`;
    const next = { grid: shown.grid, index: shown.index ?? 0, queries: named ? found.queries ?? queries : [], keys: named ? found.keys ?? keys : [], title: name };
    if (map === null) {
      map = heatmap({ ...next, label });
      holder.append(map.element);
    } else map.show(next);
    opened.hidden = false;
    view.mark([...marked, [row, column]]);
    announce(`${name} is open.`);
  }
  const node = element("div", { class: "explorer" }, view.element, opened);
  node.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && current !== null) { close(); event.stopPropagation(); }
  });
  return {
    element: node, open, close, overview: view,
    svg: () => (current === null ? view.svg() : map.svg()),
    rows: () => (current === null ? view.rows() : map.rows()),
    show: (next) => {
      if (next.thumbnails) thumbnails = next.thumbnails;
      if (next.full) full = next.full;
      for (const [key, value] of Object.entries({ rows: next.rows, columns: next.columns, present: next.present, queries: next.queries, keys: next.keys, pooledBy: next.pooledBy })) {
        if (value === undefined) continue;
        if (key === "rows") rows = value;
        else if (key === "columns") columns = value;
        else if (key === "present") present = value;
        else if (key === "queries") queries = value;
        else if (key === "keys") keys = value;
        else pooledBy = value;
      }
      view.show({ grid: thumbnails, present, rows, columns });
      if (current !== null && current.row < rows.length && current.column < columns.length) open(current.row, current.column);
    },
  };
}

// --- one number for every head ---

// A matrix of heads whose colours show any of some numbers; all charts are `HeadMatrix`.
export function headMatrix(charts, { open = null } = {}) {
  let chart = charts[0];
  let values = [];
  let scale = null;
  const rowsOf = (one) => one.layers.map((layer, at) => `${new Set(one.roles).size > 1 || one.roles[at] !== "encoder" ? `${one.roles[at]} ` : ""}${layer}`);
  const prepare = () => {
    values = chart.values.map((row) => row.map(plain));
    scale = scaleOf({ low: chart.low === undefined ? null : plain(chart.low), high: chart.high === undefined ? null : plain(chart.high), diverging: chart.diverging ?? false }, values.flat());
  };
  prepare();
  const paintAll = (context, place) => {
    const gap = place.wide > 14 ? 1 : 0;
    context.font = `${Math.min(11, place.wide / 3)}px ${FONT}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    values.forEach((row, down) => row.forEach((value, across) => {
      if (!Number.isFinite(value)) return;
      const [x, y] = [place.left + across * place.wide, place.top + down * place.high];
      context.fillStyle = paint(scale.name, scale.share(value));
      context.fillRect(x, y, place.wide - gap, place.high - gap);
      if (place.wide >= 27) {
        context.fillStyle = ink(scale.name, scale.share(value));
        context.fillText(brief(value), x + (place.wide - gap) / 2, y + (place.high - gap) / 2);
      }
    }));
  };
  const board = new Board({
    rows: values.length, columns: values[0].length, rowNames: rowsOf(chart), columnNames: numbers(values[0].length), label: chart.label || chart.title || chart.name,
    xLabel: "head", yLabel: "layer", most: 58, least: 8, square: false, namesAbove: true, paint: paintAll, open: open === null ? null : (row, column) => open(chart, row, column),
    read: (row, column) => `${chart.roles[row]} ${chart.layers[row]}, head ${column}: ${number(values[row][column], 4)}`,
  });
  const named = (one) => (one.title || one.label || one.name).replaceAll("\n", " ");
  const bar = colourBar(scale, named(chart));
  const id = once("number");
  const choice = element("select", { id }, ...charts.map((one, at) => element("option", { value: at }, named(one))));
  const node = element("div", { class: "head-matrix" },
    charts.length > 1 ? element("div", { class: "field inline" }, element("label", { for: id }, "Number"), choice) : null, board.element, bar.element);
  const show = (at) => {
    chart = charts[at];
    choice.value = String(at);
    prepare();
    board.label = named(chart);
    board.resize(values.length, values[0].length, rowsOf(chart), numbers(values[0].length));
    bar.show(scale, named(chart));
    board.redraw();
  };
  choice.addEventListener("change", () => { show(Number(choice.value)); announce(named(chart)); });
  const rows = () => [["role", "layer", ...numbers(values[0].length)], ...values.map((row, at) => [chart.roles[at], chart.layers[at], ...row])];
  return { element: node, show, rows, board, svg: () => board.vector({ title: named(chart), scale, label: named(chart) }) };
}

function brief(value) {
  if (Math.abs(value) < 1) return (Math.round(100 * value) / 100 + 0).toFixed(2).replace("0.", ".");
  return Number(value.toPrecision(3)).toString();
}

// --- patterns of a chart ---

function gridOfMatrix(matrix) {
  return Array.isArray(matrix.values) ? gridOf([matrix.values]) : unpack(matrix.values);
}

// A `Pattern`: one matrix as a heat map, several of them with a choice, a labelled grid of them as an overview.
export function patternView(chart) {
  const { matrices } = chart;
  const options = {
    queries: chart.queries ?? [], keys: chart.keys ?? [], scale: chart.scale ?? "linear", bar: plain(chart.bar ?? 0), label: chart.label ?? "attention weight",
    low: chart.low === undefined ? null : plain(chart.low), high: chart.high === undefined ? null : plain(chart.high), xLabel: chart.x_label ?? "key", yLabel: chart.y_label ?? "query",
  };
  if (matrices.length === 1) return heatmap({ ...options, grid: gridOfMatrix(matrices[0]), title: matrices[0].title || chart.title || chart.name });
  if ((chart.columns ?? []).length) return labelled(chart, options);
  const name = (at) => matrices[at].title || `${at + 1} of ${matrices.length}`;
  const map = heatmap({ ...options, grid: gridOfMatrix(matrices[0]), title: name(0) });
  const id = once("matrix");
  const choice = element("select", { id }, ...matrices.map((_, at) => element("option", { value: at }, name(at))));
  choice.addEventListener("change", () => map.show({ grid: gridOfMatrix(matrices[Number(choice.value)]), index: 0, title: name(Number(choice.value)) }));
  const node = element("div", {}, element("div", { class: "field inline" }, element("label", { for: id }, "Matrix"), choice), map.element);
  return { element: node, svg: map.svg, rows: map.rows };
}

// A grid of matrices of any sizes: the largest size is that of all thumbnails, smaller ones are left out of the rest.
function labelled(chart, options) {
  const grids = chart.matrices.map(gridOfMatrix);
  const [down, across] = [Math.max(...grids.map((grid) => grid.rows)), Math.max(...grids.map((grid) => grid.columns))];
  const matrices = grids.map((grid) => Array.from({ length: down }, (_, row) => Array.from({ length: across }, (_, column) => (row < grid.rows && column < grid.columns ? grid.value(0, row, column) : NaN))));
  const present = grids.map((grid) => Number.isFinite(grid.ends(0)[1]) && grid.ends(0).some((end) => end !== 0));
  const view = explorer({
    rows: chart.rows, columns: chart.columns, thumbnails: gridOf(matrices), present, queries: options.queries, keys: options.keys, label: options.label, title: chart.title || chart.name,
    full: (row, column) => ({ grid: grids[row * chart.columns.length + column], index: 0 }),
  });
  return { element: element("div", {}, view.element, element("p", { class: "note" }, options.xLabel)), svg: view.svg, rows: view.rows };
}
