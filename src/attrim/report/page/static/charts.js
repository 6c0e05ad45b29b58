// Curves, training steps, bars and distributions as SVG, with d3's scales, axes and shapes.

import { area, axisBottom, axisLeft, axisRight, line, scaleLinear, scaleLog, select, symbol, symbolCircle, symbolCross, symbolDiamond, symbolSquare, symbolStar, symbolTriangle, symbolWye } from "./vendor/d3.js";
import { announce, dark, element, number, onTheme, onWidth, once, plain, plainNumbers, vector } from "./dom.js";
import { palette, shades } from "./colours.js";

const MARKERS = [symbolCircle, symbolSquare, symbolDiamond, symbolTriangle, symbolCross, symbolStar, symbolWye];
const DASHES = [null, "6 3", "2 3"];
const DENSE = 24; // a line with more points than this has no markers
const LISTED = 10; // series that one reading lists
const LEGEND = 24; // more series than this are named by the ends of their colours
const SAVED = 720; // pixels across of a saved figure
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";

// --- what a chart has, in one form ---

// Series, histograms or groups with a colour each, in one list; `axis` says which vertical axis they belong to.
function modelOf(chart) {
  const model = {
    kind: chart.kind, title: chart.title ?? "", x: chart.x ?? {}, y: chart.y ?? {}, right: chart.right ?? null,
    parts: [], controls: [], references: [], annotate: chart.annotate ?? false, apart: chart.apart ?? 0, steps: null, legend: chart.legend ?? "",
  };
  if (chart.kind === "Curve" || chart.kind === "TrainingSteps") {
    model.parts = chart.series.map(seriesOf);
    model.controls = (chart.controls ?? []).map((point) => ({ ...point, x: plain(point.x), y: plain(point.y), low: optional(point.low), high: optional(point.high) }));
    model.references = (chart.references ?? []).concat((chart.events ?? []).map((event) => ({ ...event, along: "vertical" })));
    if (chart.kind === "TrainingSteps" && chart.x === undefined) model.x = { label: "step", scale: "whole" };
    if (model.x.scale === "steps") {
      model.steps = [...new Set(model.parts.flatMap((part) => part.x))].sort((one, other) => other - one);
    }
  } else if (chart.kind === "Distribution") {
    model.edges = plainNumbers(chart.edges);
    model.parts = chart.bins.map((bins) => ({ name: bins.name, look: bins.look ?? "series", filled: bins.filled ?? false, y: plainNumbers(bins.values), histogram: true }));
    model.parts.push(...(chart.lines ?? []).map((one) => ({ ...seriesOf(one), right: true })));
    model.references = chart.references ?? [];
  } else {
    model.labels = chart.labels ?? [];
    model.sections = chart.sections ?? [];
    model.mark = chart.mark ?? "bar";
    model.parts = chart.groups.map((group) => ({
      name: group.name, look: "series", bars: true, y: plainNumbers(group.values), low: ends(group.low), high: ends(group.high),
      smallest: ends(group.smallest), largest: ends(group.largest), points: (group.points ?? []).map(plainNumbers),
    }));
    model.references = chart.references ?? [];
    model.places = model.parts[0].y.length;
  }
  return model;
}

function optional(value) {
  return value === null || value === undefined ? NaN : plain(value);
}

function ends(values) {
  return values === null || values === undefined ? null : plainNumbers(values);
}

function seriesOf(series) {
  return {
    name: series.name, look: series.look ?? "series", right: series.right ?? false, x: plainNumbers(series.x), y: plainNumbers(series.y),
    low: ends(series.low), high: ends(series.high), labels: series.labels ?? [],
    bands: (series.bands ?? []).map((band) => ({ low: plainNumbers(band.low), high: plainNumbers(band.high) })),
  };
}

// Colour, marker and dashes of every part, by its name among `names` and by its look.
function styles(model, names, colours) {
  const ordered = shades(model.parts.filter((part) => part.look === "ordered").length, colours.night);
  const own = model.parts.filter((part) => part.look === "series").map((part) => part.name);
  const known = names.length ? names : own;
  let place = 0;
  return model.parts.map((part, at) => {
    if (part.look === "ordered") {
      place += 1;
      return { colour: ordered[place - 1], width: 1.4, marker: null, dash: null, opacity: 1 };
    }
    if (part.look === "total") return { colour: colours.ink, width: 1.6, marker: null, dash: "6 3", opacity: 1 };
    if (part.look === "muted") return { colour: colours.quiet, width: 0.8, marker: null, dash: null, opacity: 0.45 };
    const clear = known.includes(part.name) && own.filter((name) => name === part.name).length === 1;
    const index = clear ? known.indexOf(part.name) : at;
    const turn = Math.floor(index / colours.series.length);
    const colour = colours.series[index % colours.series.length];
    return { colour, width: 1.8, marker: MARKERS[(index + turn) % MARKERS.length], dash: DASHES[turn % 3], opacity: 1 };
  });
}

// --- scales ---

function finite(values) {
  return values.filter((value) => Number.isFinite(value));
}

function spread(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (Number.isFinite(value)) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low > high ? [0, 1] : [low, high];
}

function placesOf(model, part) {
  if (part.histogram) return model.edges.slice(0, -1).map((edge, at) => (edge + model.edges[at + 1]) / 2);
  if (part.bars) return part.y.map((_, at) => at);
  return model.steps === null ? part.x : part.x.map((x) => model.steps.indexOf(x));
}

// Where the horizontal axis ends.
export function domainX(model) {
  if (model.kind === "Bars") return [-0.5, model.places - 0.5];
  if (model.kind === "Distribution") {
    const positive = model.x.scale === "log" ? finite(model.edges).filter((edge) => edge > 0) : finite(model.edges);
    return [model.x.low ?? Math.min(...positive), model.x.high ?? Math.max(...positive)];
  }
  if (model.steps !== null) return [-0.3, model.steps.length - 0.7];
  let all = [...model.parts.flatMap((part) => part.x), ...model.controls.map((control) => control.x),
    ...model.references.filter((one) => one.along === "vertical").map((one) => plain(one.value))];
  if (model.x.scale === "log") all = all.filter((value) => value > 0);
  const [low, high] = spread(all);
  if (model.x.scale === "log") return [plain(model.x.low ?? low / 1.15), plain(model.x.high ?? high * 1.15)];
  const margin = 0.03 * (high - low || 1);
  return [plain(model.x.low ?? low - margin), plain(model.x.high ?? high + margin)];
}

function numbersOf(part) {
  return [part.y, part.low, part.high, part.smallest, part.largest, ...(part.bands ?? []).flatMap((band) => [band.low, band.high]), ...(part.points ?? [])].filter(Boolean).flat();
}

// Where a vertical axis ends, for the parts that are shown.
export function domainY(model, hidden, right = false) {
  const axis = right ? model.right : model.y;
  const shown = model.parts.filter((part, at) => Boolean(part.right) === right && !hidden.has(at));
  let all = shown.flatMap(numbersOf);
  if (!right) {
    all.push(...model.controls.flatMap((control) => [control.y, control.low, control.high]));
    all.push(...model.references.filter((one) => (one.along ?? "horizontal") === "horizontal").map((one) => plain(one.value)));
    if (model.right?.kind === "Drop") all.push(plain(model.right.baseline));
    if (model.kind === "Bars" && model.mark === "bar" && axis.scale !== "log") all.push(0);
    if (shown.some((part) => part.histogram) && axis.scale !== "log") all.push(0);
  }
  if (axis.scale === "log") {
    all = all.filter((value) => value > 0);
    const [low, high] = spread(all.length ? all : [0.1, 1]);
    return [plain(axis.low ?? low / 1.3), plain(axis.high ?? high * 1.3)];
  }
  let [low, high] = spread(all);
  const bars = model.kind === "Bars" && model.mark === "bar" || shown.some((part) => part.histogram);
  const margin = 0.08 * (high - low || Math.abs(high) || 1);
  low = axis.low !== undefined && axis.low !== null ? plain(axis.low) : bars && low >= 0 ? 0 : low - margin;
  high = axis.high !== undefined && axis.high !== null ? plain(axis.high) : bars && high <= 0 ? 0 : high + margin;
  if (axis.least !== undefined && axis.least !== null) low = Math.max(low, plain(axis.least));
  if (axis.most !== undefined && axis.most !== null) high = Math.min(high, plain(axis.most));
  return low < high ? [low, high] : [low, low + 1];
}

function scale(axis, domain, range) {
  const usable = axis.scale === "log" && domain[0] > 0;
  const made = usable ? scaleLog(domain, range) : scaleLinear(domain, range);
  return made.clamp(false);
}

function ticksOf(axis, made, room) {
  const count = Math.max(2, Math.floor(room));
  if (axis.scale === "whole") return made.ticks(count).filter(Number.isInteger);
  if (axis.scale === "log" && made.base) {
    const decades = made.ticks(count).filter((value) => Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-9);
    const all = made.ticks(count);
    if (decades.length < 3) return all.filter((value) => [1, 2, 5].includes(Math.round(value / 10 ** Math.floor(Math.log10(value) + 1e-9))));
    const step = Math.ceil(decades.length / count);
    return decades.filter((_, at) => at % step === 0);
  }
  return made.ticks(count);
}

function tickText(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential().replace("e+", "e").replace("-", "−");
  return String(Number(value.toPrecision(6))).replace("-", "−");
}

// --- drawing ---

function label(text, attributes, colours) {
  return vector("text", { fill: colours.ink, "font-size": 12, ...attributes }, text);
}

// Labels that are too long for the room are cut; the whole is in the title of the node.
function fitted(text, pixels, size = 12) {
  const most = Math.max(4, Math.floor(pixels / (0.56 * size)));
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

// Draw a model; gives the node and the places that can be read: `{ x, y, key, part, text }`.
function draw(model, { width, height, colours, hidden, names, compact = false, shared = {}, bare = false }) {
  const style = styles(model, names, colours);
  const rightAxis = model.right !== null && !bare;
  const top = model.title && compact ? 20 : 10;
  const margins = bare ? { left: 2, right: 2, top: 2, bottom: 2 }
    : { left: model.y.label ? 58 : 44, right: rightAxis ? 52 : 14, top, bottom: (model.x.label ? 40 : 24) + bottomRoom(model, width) };
  const inner = { left: margins.left, right: width - margins.right, top: margins.top, bottom: height - margins.bottom };
  const x = scale(model.x, shared.x ?? domainX(model), [inner.left, inner.right]);
  const upright = model.y.reverse ? [inner.top, inner.bottom] : [inner.bottom, inner.top];
  const y = scale(model.y, shared.y ?? domainY(model, hidden), upright);
  const right = model.right === null ? null
    : model.right.kind === "Drop" ? dropScale(model.right, y) : scale(model.right, domainY(model, hidden, true), model.right.reverse ? [inner.top, inner.bottom] : [inner.bottom, inner.top]);
  const svg = vector("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT, "font-size": 11, color: colours.quiet });
  const clip = once("clip");
  svg.append(vector("defs", {}, vector("clipPath", { id: clip }, vector("rect", { x: inner.left - 5, y: inner.top - 5, width: Math.max(0, inner.right - inner.left + 10), height: Math.max(0, inner.bottom - inner.top + 10) }))));
  const under = vector("g");
  svg.append(under);
  if (!bare) svg.append(...axesOf(model, { x, y, right, inner, width, height, colours, compact, style }));
  const ground = vector("g", { "clip-path": `url(#${clip})` });
  const targets = [];
  const context = { model, x, y, right, inner, colours, style, under, ground, targets, hidden };
  if (model.kind === "Bars") drawSections(context);
  drawReferences(context, names);
  model.parts.forEach((part, at) => {
    if (hidden.has(at)) return;
    if (part.histogram) drawHistogram(context, part, style[at]);
    else if (part.bars) drawGroup(context, part, style[at], at);
    else drawSeries(context, part, style[at], at, bare);
  });
  drawControls(context);
  svg.append(ground);
  if (model.title && compact && !bare) svg.append(label(fitted(model.title, width - 10), { x: inner.left, y: 13 }, colours));
  return { svg, targets, x, inner };
}

function bottomRoom(model, width) {
  if (model.kind !== "Bars" || model.sections.length) return 0;
  const longest = Math.max(...model.labels.map((text) => text.length));
  return longest * 6.2 > (width - 70) / model.places ? Math.min(90, 5 * longest) : 0;
}

function dropScale(drop, y) {
  const sign = drop.rise ? -1 : 1;
  const baseline = plain(drop.baseline);
  const [low, high] = y.domain().map((score) => (sign * 100 * (baseline - score)) / baseline);
  return scaleLinear([low, high], y.range());
}

function axesOf(model, { x, y, right, inner, width, height, colours, compact, style }) {
  const nodes = [];
  const across = inner.right - inner.left;
  const down = inner.bottom - inner.top;
  const yTicks = ticksOf(model.y, y, down / (compact ? 40 : 45));
  nodes.push(vector("g", {}, ...yTicks.map((tick) => vector("line", { x1: inner.left, x2: inner.right, y1: y(tick), y2: y(tick), stroke: colours.line, "stroke-width": 0.7 }))));
  const bottom = vector("g", { transform: `translate(0,${inner.bottom})` });
  const xAxis = axisBottom(x).tickSizeOuter(0);
  if (model.kind === "Bars") barAxis(model, xAxis, across);
  else if (model.steps !== null) xAxis.tickValues(model.steps.map((_, at) => at)).tickFormat((at) => tickText(model.steps[at]));
  else xAxis.tickValues(ticksOf(model.x, x, across / (compact ? 60 : 80))).tickFormat(tickText);
  select(bottom).call(xAxis);
  if (model.kind === "Bars" && bottomRoom(model, width)) {
    select(bottom).selectAll("text").attr("transform", "rotate(-40)").attr("text-anchor", "end").attr("dx", "-0.5em").attr("dy", "0.4em");
  }
  nodes.push(bottom);
  const left = vector("g", { transform: `translate(${inner.left},0)` });
  select(left).call(axisLeft(y).tickValues(yTicks).tickFormat(tickText).tickSizeOuter(0));
  nodes.push(left);
  if (model.x.label) nodes.push(label(fitted(model.x.label, width - 20), { x: (inner.left + inner.right) / 2, y: height - 6, "text-anchor": "middle" }, colours));
  if (model.y.label) nodes.push(turned(model.y.label, 13, (inner.top + inner.bottom) / 2, -90, height, colours.ink, colours));
  if (right !== null) {
    const g = vector("g", { transform: `translate(${inner.right},0)` });
    select(g).call(axisRight(right).ticks(Math.max(2, Math.floor(down / 45))).tickFormat(tickText).tickSizeOuter(0));
    const own = model.parts.map((part, at) => [part, style[at]]).filter(([part]) => part.right);
    const colour = own.length === 1 ? own[0][1].colour : colours.ink;
    const name = model.right.kind === "Drop" ? model.right.label ?? "relative drop (%)" : model.right.label ?? "";
    nodes.push(g, turned(name, width - 6, (inner.top + inner.bottom) / 2, -90, height, colour, colours));
  }
  return nodes;
}

function turned(text, x, y, angle, height, colour, colours) {
  return label(fitted(text, height - 8), { x, y, fill: colour, "text-anchor": "middle", transform: `rotate(${angle} ${x} ${y})` }, colours);
}

function barAxis(model, axis, across) {
  if (model.sections.length) {
    const middles = [];
    let begin = 0;
    for (const section of model.sections) {
      middles.push([begin + (section.length - 1) / 2, section.label]);
      begin += section.length;
    }
    const step = Math.max(1, Math.ceil((middles.length * 7 * Math.max(...middles.map(([, text]) => text.length + 1))) / across));
    const shown = middles.filter((_, at) => at % step === 0);
    axis.tickValues(shown.map(([place]) => place)).tickFormat((place) => (shown.find(([at]) => at === place) ?? ["", ""])[1]);
  } else {
    const step = Math.max(1, Math.ceil((model.places * 12) / across));
    axis.tickValues(model.labels.map((_, at) => at).filter((at) => at % step === 0)).tickFormat((at) => fitted(model.labels[at], 130, 11));
  }
}

function drawSections({ model, x, inner, colours, under }) {
  let begin = 0;
  model.sections.forEach((section, at) => {
    if (at % 2 === 0) under.append(vector("rect", { x: x(begin - 0.5), width: x(begin + section.length - 0.5) - x(begin - 0.5), y: inner.top, height: inner.bottom - inner.top, fill: colours.band }));
    begin += section.length;
  });
}

function drawReferences({ model, x, y, inner, colours, style, ground, targets }) {
  const lines = [...model.references];
  if (model.right?.kind === "Drop") lines.push({ value: model.right.baseline });
  for (const one of lines) {
    const value = plain(one.value);
    const owner = one.series ? model.parts.findIndex((part) => part.name === one.series) : -1;
    const stroke = owner >= 0 ? style[owner].colour : colours.quiet;
    const vertical = one.along === "vertical";
    const place = vertical ? { x1: x(value), x2: x(value), y1: inner.top, y2: inner.bottom } : { x1: inner.left, x2: inner.right, y1: y(value), y2: y(value) };
    ground.append(vector("line", { ...place, stroke, "stroke-width": 1.2, "stroke-dasharray": vertical ? "2 3" : "6 4" }));
    if (one.label && !vertical) targets.push({ x: inner.right, y: y(value), key: "reference", part: -1, text: `${one.label}: ${number(value, 4)}` });
  }
}

function readingOf(part, at) {
  let text = number(part.y[at], 4);
  if (part.low && Number.isFinite(part.low[at])) text += ` [${number(part.low[at], 4)}, ${number(part.high[at], 4)}]`;
  return text;
}

function drawSeries({ model, x, y, right, colours, ground, targets, style }, part, own, place, bare) {
  const up = part.right && right !== null ? right : y;
  const apart = model.steps !== null ? 0.06 : model.apart;
  const shift = apart * (place - (model.parts.length - 1) / 2);
  const where = placesOf(model, part).map((value) => value + (apart ? shift : 0));
  const known = (at) => Number.isFinite(part.y[at]) && Number.isFinite(x(where[at])) && Number.isFinite(up(part.y[at]));
  const all = part.y.map((_, at) => at);
  part.bands.forEach((band, at) => {
    const shape = area().defined((i) => Number.isFinite(band.low[i]) && Number.isFinite(band.high[i])).x((i) => x(where[i])).y0((i) => up(band.low[i])).y1((i) => up(band.high[i]));
    ground.append(vector("path", { d: shape(all) ?? "", fill: own.colour, "fill-opacity": 0.2 * (at + 1) }));
  });
  const path = line().defined(known).x((at) => x(where[at])).y((at) => up(part.y[at]));
  ground.append(vector("path", { d: path(all) ?? "", fill: "none", stroke: own.colour, "stroke-width": bare ? 1 : own.width, "stroke-dasharray": own.dash, "stroke-opacity": own.opacity, "stroke-linejoin": "round" }));
  const marks = own.marker !== null && all.length <= DENSE && !bare;
  for (const at of all.filter(known)) {
    const [px, py] = [x(where[at]), up(part.y[at])];
    if (part.low && Number.isFinite(part.low[at]) && Number.isFinite(part.high[at]) && !bare) {
      ground.append(vector("line", { x1: px, x2: px, y1: up(part.low[at]), y2: up(part.high[at]), stroke: own.colour, "stroke-width": 1.1, "stroke-opacity": own.opacity }));
    }
    if (marks) ground.append(vector("path", { d: symbol(own.marker, 38)(), transform: `translate(${px},${py})`, fill: own.colour }));
    const name = part.labels[at] ? ` (${part.labels[at]})` : "";
    if (part.labels[at] && model.annotate && !bare) {
      const falls = at > 0 && part.y[at] < part.y[at - 1];
      ground.append(vector("text", { x: px, y: falls ? up(part.low?.[at] ?? part.y[at]) + 12 : up(part.high?.[at] ?? part.y[at]) - 5, fill: colours.quiet, "font-size": 10, "text-anchor": "middle" }, part.labels[at]));
    }
    targets.push({ x: px, y: py, key: part.x[at], part: place, text: `${part.name || "value"}${name}: ${readingOf(part, at)}` });
  }
  if (all.filter(known).length === 1 && !marks && !bare) {
    const at = all.find(known);
    ground.append(vector("circle", { cx: x(where[at]), cy: up(part.y[at]), r: 3, fill: style[place].colour }));
  }
}

function drawHistogram({ model, x, y, inner, ground, targets, colours }, part, own) {
  const base = y.base ? inner.bottom : y(0);
  let d = "";
  let outline = "";
  part.y.forEach((value, at) => {
    const [low, high] = [x(model.edges[at]), x(model.edges[at + 1])];
    if (!Number.isFinite(low) || !Number.isFinite(high)) return;
    const top = Number.isFinite(value) && !(y.base && value <= 0) ? y(value) : base;
    d += `M${low},${base}V${top}H${high}V${base}Z`;
    outline += `${outline ? "L" : "M"}${low},${top}H${high}`;
    targets.push({ x: (low + high) / 2, y: top, key: at, part: model.parts.indexOf(part), text: `${part.name || "share"}: ${number(value, 4)}` });
  });
  const several = model.parts.filter((one) => one.filled).length > 1;
  if (part.filled) ground.append(vector("path", { d, fill: part.look === "muted" ? colours.quiet : own.colour, "fill-opacity": several ? 0.5 : 0.9 }));
  else ground.append(vector("path", { d: outline, fill: "none", stroke: own.colour, "stroke-width": 1.4, "stroke-dasharray": own.dash, "stroke-opacity": own.opacity }));
}

function drawGroup({ model, x, y, inner, colours, ground, targets }, part, own, place) {
  const groups = model.parts.length;
  const bars = model.mark === "bar";
  const wide = bars ? 0.8 / groups : Math.min(0.3, 0.8 / groups);
  const offset = (place - (groups - 1) / 2) * wide;
  const base = y.base ? inner.bottom : y(Math.min(Math.max(0, y.domain()[0]), y.domain()[1]));
  const upright = (at, low, high, stroke, width) => vector("line", { x1: x(at + offset), x2: x(at + offset), y1: y(low), y2: y(high), stroke, "stroke-width": width });
  part.y.forEach((value, at) => {
    if (!Number.isFinite(value)) return;
    const [px, py] = [x(at + offset), y(value)];
    if (bars) {
      const half = (0.46 * (groups > 1 ? 1 : 1.08) * wide * (x(1) - x(0)));
      ground.append(vector("rect", { x: px - half, width: 2 * half, y: Math.min(py, base), height: Math.abs(py - base), fill: own.colour }));
    }
    if (part.smallest && Number.isFinite(part.smallest[at])) ground.append(upright(at, part.smallest[at], part.largest[at], colours.quiet, 0.7));
    if (part.low && Number.isFinite(part.low[at])) ground.append(upright(at, part.low[at], part.high[at], bars ? colours.ink : own.colour, bars ? 1 : 2));
    if (!bars) ground.append(vector("circle", { cx: px, cy: py, r: 2.4, fill: own.colour }));
    for (const point of part.points?.[at] ?? []) ground.append(vector("circle", { cx: px, cy: y(point), r: 1.8, fill: colours.ink, "fill-opacity": 0.75 }));
    const extremes = part.smallest && Number.isFinite(part.smallest[at]) ? `, from ${number(part.smallest[at])} to ${number(part.largest[at])}` : "";
    targets.push({ x: px, y: py, key: at, part: place, text: `${part.name || "value"}: ${readingOf(part, at)}${extremes}` });
  });
}

function drawControls({ model, x, y, colours, ground, targets }) {
  model.controls.forEach((control, at) => {
    const [px, py] = [x(control.x), y(control.y)];
    if (Number.isFinite(control.low)) ground.append(vector("line", { x1: px, x2: px, y1: y(control.low), y2: y(control.high), stroke: colours.quiet, "stroke-width": 1 }));
    ground.append(vector("path", { d: symbol(MARKERS[1 + (at % (MARKERS.length - 1))], 46)(), transform: `translate(${px},${py})`, fill: colours.quiet }));
    const interval = Number.isFinite(control.low) ? ` [${number(control.low, 4)}, ${number(control.high, 4)}]` : "";
    targets.push({ x: px, y: py, key: `control ${at}`, part: -1, text: `${control.label ?? "control"}: ${number(control.y, 4)}${interval} at ${number(control.x)}` });
  });
}

// What the key of a reading is called: the place on the horizontal axis.
function keyText(model, key) {
  if (typeof key === "string") return "";
  if (model.kind === "Distribution" && Number.isInteger(key)) return `${number(model.edges[key])} to ${number(model.edges[key + 1])}`;
  if (model.kind === "Bars") {
    if (model.labels[key]) return model.labels[key];
    let begin = 0;
    for (const section of model.sections) {
      if (key < begin + section.length) return section.length > 1 ? `${section.label}, ${key - begin}` : section.label;
      begin += section.length;
    }
  }
  return `${model.x.label || "x"} ${number(key, 5)}`;
}

// --- the legend ---

function swatch(own, colours, histogram) {
  const node = vector("svg", { width: 26, height: 12, "aria-hidden": "true" });
  if (histogram) node.append(vector("rect", { x: 3, y: 2, width: 20, height: 8, fill: own.colour, "fill-opacity": own.opacity }));
  else {
    node.append(vector("line", { x1: 1, x2: 25, y1: 6, y2: 6, stroke: own.colour, "stroke-width": 2, "stroke-dasharray": own.dash, "stroke-opacity": own.opacity }));
    if (own.marker) node.append(vector("path", { d: symbol(own.marker, 36)(), transform: "translate(13,6)", fill: own.colour }));
  }
  return node;
}

// Names that a legend has, with their style: `[{ name, style, parts }]`.
function entries(models, names, colours) {
  const found = new Map();
  models.forEach((model, which) => {
    const style = styles(model, names, colours);
    model.parts.forEach((part, at) => {
      if (part.look === "muted" && !part.filled || !part.name) return;
      if (!found.has(part.name)) found.set(part.name, { name: part.name, style: style[at], block: Boolean(part.bars || part.filled), parts: [] });
      found.get(part.name).parts.push([which, at]);
    });
  });
  return [...found.values()];
}

function fixedEntries(models, colours) {
  const found = new Map();
  for (const model of models) {
    model.controls.forEach((control, at) => {
      if (control.label) found.set(control.label, { name: control.label, style: { colour: colours.quiet, marker: MARKERS[1 + (at % (MARKERS.length - 1))], dash: "0 100", opacity: 1 } });
    });
    for (const one of model.references) {
      const owner = one.series ? model.parts.findIndex((part) => part.name === one.series) : -1;
      const colour = owner >= 0 ? styles(model, [], colours)[owner].colour : colours.quiet;
      if (one.label) found.set(one.label, { name: one.label, style: { colour, marker: null, dash: one.along === "vertical" ? "2 3" : "6 4", opacity: 1 } });
    }
  }
  return [...found.values()];
}

// The legend of a saved figure: a group of rows, and how high it is.
function legendVector(models, names, colours, width, top, title) {
  const every = [...entries(models, names, colours), ...fixedEntries(models, colours)];
  const shown = every.length > LEGEND ? [every[0], every[Math.floor(every.length / 2)], every.at(-1)] : every;
  if (shown.length < 2 && !title) return { node: vector("g"), height: 0 };
  const node = vector("g");
  let [x, y] = [10, top + 14];
  if (title) {
    node.append(label(title, { x, y }, colours));
    x += 7 * title.length + 16;
  }
  for (const entry of shown) {
    const wide = 36 + 6.6 * entry.name.length;
    if (x + wide > width && x > 10) [x, y] = [10, y + 18];
    const mark = swatch(entry.style, colours, entry.block);
    mark.setAttribute("x", x);
    mark.setAttribute("y", y - 10);
    node.append(mark, label(entry.name, { x: x + 30, y, "font-size": 11 }, colours));
    x += wide + 8;
  }
  return { node, height: y - top + 8 };
}

function saved(nodes, width, height, colours, title) {
  const svg = vector("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT });
  svg.append(vector("rect", { width, height, fill: colours.ground }));
  if (title) svg.append(vector("text", { x: 10, y: 18, fill: colours.ink, "font-size": 13, "font-weight": 600 }, fitted(title, width - 20, 13)));
  svg.append(...nodes);
  return svg;
}

function moved(svg, x, y) {
  svg.setAttribute("x", x);
  svg.setAttribute("y", y);
  return svg;
}

// --- one chart on the page ---

// A drawing that follows its width, the theme, the pointer and the keyboard.
class Canvas {
  constructor(model, { names = [], compact = false, shared = {}, height = 0, title = "" }) {
    Object.assign(this, { model, names, compact, shared, title });
    this.hidden = new Set();
    this.marked = null;
    this.cursor = -1;
    this.wanted = height;
    this.holder = element("div", { class: "plot", tabindex: "0", role: "group", "aria-roledescription": "chart",
      "aria-label": `${title || model.title || "chart"}: arrow keys read the numbers` });
    this.tip = element("div", { class: "tip", hidden: true });
    this.pointer = vector("g", { "pointer-events": "none", visibility: "hidden" },
      vector("line", { "stroke-width": 1, "stroke-dasharray": "2 2" }), vector("circle", { r: 5, fill: "none", "stroke-width": 2 }));
    this.scrub = vector("line", { "stroke-width": 1.5, visibility: "hidden", "pointer-events": "none" });
    this.holder.append(this.tip);
    onWidth(this.holder, (width) => { this.width = width; this.redraw(); });
    onTheme(() => this.redraw());
    this.holder.addEventListener("pointermove", (event) => this.hover(event));
    this.holder.addEventListener("pointerleave", () => this.leave());
    this.holder.addEventListener("blur", () => this.leave());
    this.holder.addEventListener("keydown", (event) => this.key(event));
  }

  redraw() {
    if (!this.width) return;
    const colours = palette(dark());
    const height = this.wanted || Math.round(Math.min(380, Math.max(230, this.width * 0.5))) + bottomRoom(this.model, this.width);
    const drawn = draw(this.model, { width: this.width, height, colours, hidden: this.hidden, names: this.names, compact: this.compact, shared: this.shared });
    this.drawn = drawn;
    drawn.svg.setAttribute("aria-hidden", "true");
    this.pointer.firstChild.setAttribute("stroke", colours.quiet);
    this.pointer.lastChild.setAttribute("stroke", colours.ink);
    this.scrub.setAttribute("stroke", colours.ink);
    drawn.svg.append(this.scrub, this.pointer);
    this.holder.querySelector("svg")?.remove();
    this.holder.prepend(drawn.svg);
    this.cursor = -1;
    this.pointer.setAttribute("visibility", "hidden");
    this.tip.hidden = true;
    this.mark(this.marked);
  }

  // What can be read at one place: its name, and the numbers of all series there.
  reading(target) {
    const same = this.drawn.targets.filter((other) => other.key === target.key && typeof target.key !== "string");
    const near = same.length ? same.sort((one, other) => Math.abs(one.y - target.y) - Math.abs(other.y - target.y)).slice(0, LISTED).sort((one, other) => one.part - other.part) : [target];
    const lines = near.map((one) => (one === target && near.length > 1 ? `▸ ${one.text}` : one.text));
    const head = keyText(this.model, target.key);
    if (same.length > LISTED) lines.push(`… and ${same.length - LISTED} more`);
    return (head ? [head, ...lines] : lines).join("\n");
  }

  point(target) {
    const { inner } = this.drawn;
    const [across, ring] = this.pointer.children;
    across.setAttribute("x1", target.x);
    across.setAttribute("x2", target.x);
    across.setAttribute("y1", inner.top);
    across.setAttribute("y2", inner.bottom);
    ring.setAttribute("cx", target.x);
    ring.setAttribute("cy", target.y);
    this.pointer.setAttribute("visibility", "visible");
    this.tip.textContent = this.reading(target);
    this.tip.hidden = false;
    const left = target.x + 14 + this.tip.offsetWidth > this.width ? Math.max(0, target.x - 14 - this.tip.offsetWidth) : target.x + 14;
    this.tip.style.left = `${left}px`;
    this.tip.style.top = `${Math.max(0, Math.min(target.y - 10, this.drawn.inner.bottom - this.tip.offsetHeight))}px`;
  }

  hover(event) {
    if (!this.drawn) return;
    const box = this.holder.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let [best, least] = [null, Infinity];
    for (const target of this.drawn.targets) {
      const far = (target.x - x) ** 2 + 0.35 * (target.y - y) ** 2;
      if (far < least) [best, least] = [target, far];
    }
    if (best === null || least > 3600) this.leave();
    else this.point(best);
  }

  leave() {
    this.pointer.setAttribute("visibility", "hidden");
    this.tip.hidden = true;
  }

  key(event) {
    const targets = this.drawn?.targets ?? [];
    if (!targets.length) return;
    const current = targets[this.cursor];
    const inPart = targets.map((target, at) => [target, at]).filter(([target]) => current === undefined || target.part === current.part);
    const place = inPart.findIndex(([, at]) => at === this.cursor);
    const parts = [...new Set(targets.map((target) => target.part))];
    let next = null;
    if (event.key === "ArrowRight") next = inPart[Math.min(inPart.length - 1, place + 1)][1];
    else if (event.key === "ArrowLeft") next = inPart[Math.max(0, place - 1)][1];
    else if (event.key === "Home") next = inPart[0][1];
    else if (event.key === "End") next = inPart.at(-1)[1];
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const step = event.key === "ArrowDown" ? 1 : -1;
      const part = parts[(Math.max(0, parts.indexOf(current?.part)) + (current === undefined ? 0 : step) + parts.length) % parts.length];
      const others = targets.map((target, at) => [target, at]).filter(([target]) => target.part === part);
      next = others.reduce((best, one) => (Math.abs(one[0].x - (current?.x ?? 0)) < Math.abs(best[0].x - (current?.x ?? 0)) ? one : best))[1];
    } else if (event.key === "Escape") { this.leave(); return; } else return;
    event.preventDefault();
    this.cursor = next;
    this.point(targets[next]);
    announce(`${keyText(this.model, targets[next].key)} ${targets[next].text}`);
  }

  toggle(at, shown) {
    if (shown) this.hidden.delete(at);
    else this.hidden.add(at);
    this.redraw();
  }

  // A vertical line at a place, or none.
  mark(x) {
    this.marked = x;
    if (!this.drawn) return;
    const place = x === null ? NaN : this.drawn.x(x);
    this.scrub.setAttribute("visibility", Number.isFinite(place) ? "visible" : "hidden");
    if (!Number.isFinite(place)) return;
    for (const end of ["x1", "x2"]) this.scrub.setAttribute(end, place);
    this.scrub.setAttribute("y1", this.drawn.inner.top);
    this.scrub.setAttribute("y2", this.drawn.inner.bottom);
  }
}

// Buttons that switch series on and off, in all charts that share the legend.
function legendOf(charts, names, title) {
  const models = charts.map((chart) => chart.model);
  const node = element("div", { class: "legend", role: "group", "aria-label": title ? `Series: ${title}` : "Series" });
  const off = new Set();
  const fill = () => {
    const colours = palette(dark());
    const every = entries(models, names, colours);
    const fixed = fixedEntries(models, colours);
    if (every.length + fixed.length < 2 && !title) { node.hidden = true; return; }
    const buttons = every.map((entry) => {
      const button = element("button", { type: "button", class: "series", "aria-pressed": String(!off.has(entry.name)) }, swatch(entry.style, colours, entry.block), entry.name);
      button.addEventListener("click", () => {
        const shown = off.has(entry.name);
        if (shown) off.delete(entry.name);
        else off.add(entry.name);
        button.setAttribute("aria-pressed", String(shown));
        const touched = new Set(entry.parts.map(([which]) => which));
        for (const which of touched) {
          for (const [other, at] of entry.parts) if (other === which) charts[which].hidden[shown ? "delete" : "add"](at);
          charts[which].redraw();
        }
        announce(`${entry.name} ${shown ? "shown" : "hidden"}.`);
      });
      return button;
    });
    const marks = fixed.map((entry) => element("span", { class: "series" }, swatch(entry.style, colours, false), entry.name));
    const head = title ? element("span", { class: "legend-title" }, title) : null;
    if (buttons.length > LEGEND) {
      node.replaceChildren(element("details", {}, element("summary", {}, `${title || "Series"}: ${every[0].name} … ${every.at(-1).name} (${every.length})`), element("div", { class: "legend" }, ...buttons)), ...marks);
    } else node.replaceChildren(...[head, ...buttons, ...marks].filter(Boolean));
  };
  fill();
  onTheme(fill);
  return node;
}

// A slider over the steps of a training, and the numbers at the step.
function scrubber(charts) {
  const steps = [...new Set(charts.flatMap((chart) => chart.model.parts.flatMap((part) => part.x)))].filter(Number.isFinite).sort((one, other) => one - other);
  const id = once("step");
  const input = element("input", { type: "range", id, min: 0, max: Math.max(0, steps.length - 1), value: Math.max(0, steps.length - 1), step: 1 });
  const out = element("output", { for: id, class: "readout" });
  const name = charts[0].model.x.label || "step";
  const show = () => {
    const x = steps[Number(input.value)];
    const texts = [];
    for (const chart of charts) {
      chart.mark(x);
      chart.model.parts.forEach((part, at) => {
        if (part.look === "muted" || chart.hidden.has(at)) return;
        let best = -1;
        part.x.forEach((value, index) => { if (value <= x && Number.isFinite(part.y[index]) && (best < 0 || value > part.x[best])) best = index; });
        if (best >= 0) texts.push(`${charts.length > 1 && chart.model.title ? `${chart.model.title}, ` : ""}${part.name || "value"}: ${readingOf(part, best)}`);
      });
    }
    const most = 16;
    out.textContent = `${name} ${number(x, 6)}\n${texts.slice(0, most).join("\n")}${texts.length > most ? `\n… and ${texts.length - most} more` : ""}`;
    input.setAttribute("aria-valuetext", `${name} ${number(x, 6)}`);
  };
  input.addEventListener("input", show);
  if (steps.length) show();
  return element("div", { class: "scrubber" }, element("label", { for: id }, `Go to ${name}`), input, out);
}

function rowsOf(model, prefix = []) {
  return model.parts.flatMap((part) => part.y.map((y, at) => {
    if (part.histogram) return [...prefix, part.name, model.edges[at], model.edges[at + 1], y, "", "", ""];
    const x = part.bars ? keyText(model, at) : part.x[at];
    return [...prefix, part.name, x, "", y, part.low?.[at] ?? "", part.high?.[at] ?? "", part.labels?.[at] ?? ""];
  })).concat(model.controls.map((control) => [...prefix, "control", control.x, "", control.y, control.low, control.high, control.label ?? ""]),
    model.references.map((one) => [...prefix, one.along === "vertical" ? "vertical line" : "line", one.along === "vertical" ? plain(one.value) : "", "", one.along === "vertical" ? "" : plain(one.value), "", "", one.label ?? ""]));
}

const COLUMNS = ["series", "x", "x to", "y", "low", "high", "label"];

// A Curve, TrainingSteps, Bars or Distribution as a view.
export function plot(chart, { names = [], height = 0 } = {}) {
  const model = modelOf(chart);
  const canvas = new Canvas(model, { names, height, title: chart.title || chart.name });
  const node = element("div", { class: "chart" }, canvas.holder, legendOf([canvas], names, model.legend),
    chart.kind === "TrainingSteps" ? scrubber([canvas]) : null);
  const svg = () => {
    const colours = palette(false);
    const height = 400 + bottomRoom(model, SAVED);
    const drawn = draw(model, { width: SAVED, height, colours, hidden: canvas.hidden, names });
    const below = legendVector([model], names, colours, SAVED, 26 + height, model.legend);
    return saved([moved(drawn.svg, 0, 26), below.node], SAVED, 26 + height + below.height + 8, colours, chart.title || chart.name);
  };
  return { element: node, svg, rows: () => [COLUMNS, ...rowsOf(model)] };
}

// Series with a colour of their own, over all panels.
function sharedNames(models) {
  return [...new Set(models.flatMap((model) => model.parts).filter((part) => part.look === "series").map((part) => part.name))];
}

function merged(domains) {
  return [Math.min(...domains.map(([low]) => low)), Math.max(...domains.map(([, high]) => high))];
}

const MANY = 16; // more panels than this are small, and one of them is shown at full size

// Charts beside each other with one legend. `heat(chart)` makes the view of a Pattern among them.
export function panels(chart, heat) {
  const plots = chart.charts.filter((one) => one.kind !== "Pattern");
  const patterns = chart.charts.filter((one) => one.kind === "Pattern");
  const models = plots.map((one, at) => {
    const model = modelOf(one);
    model.title = one.title || gridTitle(chart, at);
    if (!model.x.label && chart.x_label) model.x = { ...model.x, label: chart.x_label };
    if (!model.y.label && chart.y_label) model.y = { ...model.y, label: chart.y_label };
    return model;
  });
  const names = sharedNames(models);
  const none = new Set();
  const shared = {};
  if (chart.share_x && models.length) shared.x = merged(models.map(domainX));
  if (chart.share_y && models.length) shared.y = merged(models.map((model) => domainY(model, none)));
  const views = patterns.map(heat);
  const small = models.length > MANY || (chart.columns ?? []).length > 0;
  const content = !models.length ? null : small ? smallPanels(chart, models, names, shared) : largePanels(chart, models, names, shared);
  const node = element("div", { class: "chart" }, content, views.length ? element("div", { class: "columns" }, ...views.map((view, at) =>
    element("div", {}, element("p", { class: "panel-title" }, patterns[at].title ?? ""), view.element))) : null);
  const svg = () => savedPanels(chart, models, names, shared, views);
  const rows = () => [["panel", ...COLUMNS], ...models.flatMap((model) => rowsOf(model, [model.title])), ...views.flatMap((view, at) => view.rows().map((row) => [patterns[at].title ?? "", ...row]))];
  return { element: node, svg, rows };
}

function gridTitle(chart, at) {
  if (!(chart.columns ?? []).length) return "";
  return `${chart.rows[Math.floor(at / chart.columns.length)]} / ${chart.columns[at % chart.columns.length]}`;
}

function largePanels(chart, models, names, shared) {
  const canvases = models.map((model) => new Canvas(model, { names, compact: true, shared, title: [chart.title || chart.name, model.title].filter(Boolean).join(", ") }));
  const wide = models.some((model) => model.kind === "Bars" && model.sections.length);
  const steps = models.every((model) => model.kind === "TrainingSteps");
  return element("div", {}, element("div", { class: wide ? "panels one" : "panels" }, ...canvases.map((canvas) => canvas.holder)),
    legendOf(canvases, names, chart.legend ?? ""), steps ? scrubber(canvases) : null);
}

// Thumbnails of many charts; the one that is chosen is drawn at full size below.
function smallPanels(chart, models, names, shared) {
  const across = (chart.columns ?? []).length || null;
  const large = element("div", { class: "chosen" });
  const buttons = [];
  const choose = (at) => {
    buttons.forEach((button, other) => button.setAttribute("aria-pressed", String(other === at)));
    const canvas = new Canvas(models[at], { names, compact: true, shared, height: 320, title: models[at].title });
    large.replaceChildren(canvas.holder, legendOf([canvas], names, chart.legend ?? ""));
    announce(`${models[at].title} shown at full size.`);
  };
  models.forEach((model, at) => {
    const button = element("button", { type: "button", class: "panel", "aria-pressed": "false", "aria-label": model.title, title: model.title });
    button.addEventListener("click", () => choose(at));
    buttons.push(button);
  });
  const paintAll = () => models.forEach((model, at) => {
    const drawn = draw(model, { width: 96, height: 56, colours: palette(dark()), hidden: new Set(), names, shared, bare: true });
    drawn.svg.setAttribute("aria-hidden", "true");
    for (const measure of ["width", "height"]) drawn.svg.removeAttribute(measure);
    buttons[at].replaceChildren(drawn.svg, element("span", {}, across ? "" : model.title));
  });
  paintAll();
  onTheme(paintAll);
  const grid = element("div", { class: across ? "small-panels grid" : "small-panels", role: "group", "aria-label": chart.title || chart.name });
  if (across) {
    grid.style.gridTemplateColumns = `auto repeat(${across}, minmax(1.6rem, 1fr))`;
    grid.append(element("span"), ...chart.columns.map((text) => element("span", { class: "grid-label" }, text)));
    chart.rows.forEach((text, row) => grid.append(element("span", { class: "grid-label" }, text), ...buttons.slice(row * across, (row + 1) * across)));
  } else grid.append(...buttons);
  return element("div", {}, element("p", { class: "note" }, "Choose a panel to see it at full size."), grid, large);
}

function savedPanels(chart, models, names, shared, views) {
  const colours = palette(false);
  const small = models.length > MANY || (chart.columns ?? []).length > 0;
  const across = (chart.columns ?? []).length || chart.across || (small ? 6 : Math.min(2, models.length || 1));
  const wide = Math.max(SAVED, small ? 110 * across : 380 * across);
  const cell = { width: wide / across, height: small ? 90 : 280 };
  const nodes = models.map((model, at) => {
    const drawn = draw(model, { ...cell, colours, hidden: new Set(), names, compact: true, shared, bare: small });
    if (small) drawn.svg.append(label(fitted(model.title, cell.width, 9), { x: 4, y: 11, "font-size": 9 }, colours));
    return moved(drawn.svg, (at % across) * cell.width, 26 + Math.floor(at / across) * cell.height);
  });
  let height = 26 + Math.ceil(models.length / across) * cell.height;
  const below = legendVector(models, names, colours, wide, height, chart.legend ?? "");
  nodes.push(below.node);
  height += below.height + 8;
  for (const view of views) {
    const picture = view.svg();
    nodes.push(moved(picture, 0, height));
    height += Number(picture.getAttribute("height"));
  }
  return saved(nodes, wide, height, colours, chart.title || chart.name);
}
