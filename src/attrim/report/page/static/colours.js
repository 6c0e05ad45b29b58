// Colours that colour-blind readers can tell apart: series (Okabe and Ito), cividis for amounts, PuOr for both sides of zero.

import { element, number, vector } from "./dom.js";

const ANCHORS = {
  heat: "00224e 002e6a 1a386f 32436d 434e6c 535a6d 61656f 6f7073 7d7c78 8c8878 9b9476 aba072 bcae6c cdbb63 dec958 f0d846 fee838",
  diverging: "7f3b08 a04d07 be630a db7d12 ef9e3c fdbd6e fed7a2 fbe9cf f6f6f7 e3e4ef cecde4 b6b0d4 988dbe 7967a6 5d3790 44176f 2d004b",
  ordered: "440154 48186a 472d7b 424086 3b528b 33638d 2c728e 26828e 21918c 1fa088 28ae80 3fbc73 5ec962 84d44b addc30 d8e219 fde725",
};
const cache = new Map();

// 256 colours as bytes, red, green, blue.
export function ramp(name) {
  if (!cache.has(name)) {
    const anchors = ANCHORS[name].split(" ").map((text) => [0, 2, 4].map((at) => parseInt(text.slice(at, at + 2), 16)));
    const bytes = new Uint8ClampedArray(256 * 3);
    for (let at = 0; at < 256; at += 1) {
      const place = (at / 255) * (anchors.length - 1);
      const low = Math.min(anchors.length - 2, Math.floor(place));
      for (let part = 0; part < 3; part += 1) {
        bytes[3 * at + part] = anchors[low][part] + (place - low) * (anchors[low + 1][part] - anchors[low][part]);
      }
    }
    cache.set(name, bytes);
  }
  return cache.get(name);
}

function colourAt(name, share) {
  const at = 3 * Math.round(255 * Math.min(1, Math.max(0, Number.isFinite(share) ? share : 0)));
  return ramp(name).subarray(at, at + 3);
}

export function paint(name, share) {
  return `rgb(${colourAt(name, share).join(", ")})`;
}

// Black or white: what can be read on the colour, by its luminance.
export function ink(name, share) {
  const [red, green, blue] = Array.from(colourAt(name, share), (byte) => {
    const part = byte / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

// The colours of charts; explicit, so that a saved figure needs no stylesheet.
export function palette(night) {
  return night
    ? { ground: "#16181c", ink: "#e9e9ea", quiet: "#a5a9b0", line: "#3a3e46", band: "#1f2228", night,
        series: ["#56b4e9", "#f0803c", "#2fc79a", "#e39bc4", "#f0b429", "#8ea2ff"] }
    : { ground: "#ffffff", ink: "#1c1d1f", quiet: "#5b5e63", line: "#dddddd", band: "#f3f3f3", night,
        series: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"] };
}

// Colours of ordered series (layers, heads): the end that would vanish on the ground is left out.
export function shades(count, night = false) {
  const [low, high] = night ? [0.25, 1] : [0, 0.85];
  return Array.from({ length: count }, (_, at) => paint("ordered", low + ((high - low) * at) / Math.max(1, count - 1)));
}

// A colour scale: ends that are not given come from the finite values; equal ends become 0 and 1.
export function scaleOf({ low = null, high = null, diverging = false, root = false } = {}, values = []) {
  let smallest = Infinity;
  let largest = -Infinity;
  for (const value of values) {
    if (Number.isFinite(value)) {
      if (value < smallest) smallest = value;
      if (value > largest) largest = value;
    }
  }
  if (smallest > largest) smallest = largest = 0;
  let from = low ?? smallest;
  let to = high ?? largest;
  if (diverging) {
    to = Math.max(Math.abs(from), Math.abs(to)) || 1;
    from = -to;
  } else if (!(from < to)) {
    [from, to] = [Math.min(0, from), Math.max(1, to)];
  }
  const share = (value) => {
    const part = Math.min(1, Math.max(0, (value - from) / (to - from)));
    return root ? Math.sqrt(part) : part;
  };
  const at = (part) => from + (to - from) * (root ? part * part : part);
  return { low: from, high: to, name: diverging ? "diverging" : "heat", diverging, root, share, at };
}

const STOPS = 16;

function gradient(id, name) {
  const stops = Array.from({ length: STOPS + 1 }, (_, at) =>
    vector("stop", { offset: at / STOPS, "stop-color": paint(name, at / STOPS) }));
  return vector("linearGradient", { id }, ...stops);
}

// The scale as a strip of colours with its ends and its middle.
export function colourBar(scale, label) {
  const canvas = element("canvas", { class: "ramp", width: 256, height: 1, "aria-hidden": "true" });
  const strip = () => {
    const context = canvas.getContext("2d");
    const image = context.createImageData(256, 1);
    const colours = ramp(scale.name);
    for (let at = 0; at < 256; at += 1) image.data.set([colours[3 * at], colours[3 * at + 1], colours[3 * at + 2], 255], 4 * at);
    context.putImageData(image, 0, 0);
  };
  const ends = [0, 0.5, 1].map(() => element("span"));
  const text = element("span", { class: "ramp-label" });
  const node = element("div", { class: "colour-bar" }, text, canvas, element("div", { class: "ramp-ends" }, ...ends));
  const show = (next, name) => {
    scale = next;
    strip();
    [0, 0.5, 1].forEach((part, at) => { ends[at].textContent = number(scale.at(part)); });
    text.textContent = name + (scale.root ? " (colours by the square root)" : "");
  };
  show(scale, label);
  return { element: node, show };
}

// The same for a saved figure.
export function colourBarVector(scale, label, x, y, width, colours) {
  const id = `ramp-${scale.name}`;
  const text = (part, anchor) => vector("text", { x: x + part * width, y: y + 24, fill: colours.quiet, "font-size": 10, "text-anchor": anchor }, number(scale.at(part)));
  return vector("g", {},
    vector("defs", {}, gradient(id, scale.name)),
    vector("text", { x, y: y - 4, fill: colours.ink, "font-size": 11 }, label + (scale.root ? " (colours by the square root)" : "")),
    vector("rect", { x, y, width, height: 10, fill: `url(#${id})` }),
    text(0, "start"), text(0.5, "middle"), text(1, "end"));
}
