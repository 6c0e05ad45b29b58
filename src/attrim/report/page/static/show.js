// The static form of the live view: a text, what the model makes of it, and the attention of every head.

import { dark, element, number, once } from "./dom.js";
import { palette, paint, ink, scaleOf } from "./colours.js";
import { frame } from "./export.js";
import { explorer } from "./matrix.js";
import { unpack } from "./packed.js";
import { tokenLine } from "./tokens.js";

// Where a token looks, and who looks at it: the tokens of both sides, coloured by one head.
export function lookView({ queries, keys, weight, label }) {
  let chosen = 0;
  let backwards = false;
  const shown = () => (backwards ? queries : keys);
  const values = () => shown().map((_, at) => (backwards ? weight(at, chosen) : weight(chosen, at)));
  let numbers = [];
  let scale = null;
  const prepare = () => {
    numbers = values();
    scale = scaleOf({ low: 0, high: Math.max(...numbers.filter(Number.isFinite), 1e-9), root: true });
  };
  prepare();
  const colour = (at) => ({ ground: paint(scale.name, scale.share(numbers[at])), ink: ink(scale.name, scale.share(numbers[at])) });
  const plainColours = () => { const colours = palette(dark()); return { ground: colours.band, ink: colours.ink }; };
  const note = element("p", { class: "note" });
  const read = (at) => `${at} “${shown()[at]}”: ${number(numbers[at], 4)}`;
  const target = tokenLine({ tokens: shown(), colour, read, label: `Attention of ${label}` });
  const source = tokenLine({ tokens: queries, colour: plainColours, label: "Choose a token", read: (at) => `${at} “${(backwards ? keys : queries)[at]}” (Enter or a click chooses it)`, onPick: (at) => { chosen = at; update(); } });
  const id = once("direction");
  const direction = element("select", { id }, element("option", { value: "to" }, "where the token looks"), element("option", { value: "by" }, "who looks at the token"));
  direction.addEventListener("change", () => {
    backwards = direction.value === "by";
    chosen = 0;
    source.show({ tokens: backwards ? keys : queries });
    update(true);
  });
  function update(tokens = false) {
    prepare();
    target.show(tokens ? { tokens: shown() } : {});
    const name = (backwards ? keys : queries)[chosen];
    note.textContent = backwards ? `How much every token looks at ${chosen} “${name}”` : `Where ${chosen} “${name}” looks`;
  }
  update();
  const node = element("div", { class: "look" }, element("div", { class: "field inline" }, element("label", { for: id }, "Show"), direction),
    element("p", { class: "panel-title" }, "Choose a token"), source.element, note, target.element);
  return {
    element: node,
    show: (next) => {
      if (next.weight) weight = next.weight;
      const fresh = Boolean(next.queries || next.keys);
      if (next.queries) queries = next.queries;
      if (next.keys) keys = next.keys;
      chosen = Math.min(chosen, (backwards ? keys : queries).length - 1);
      if (fresh) source.show({ tokens: backwards ? keys : queries });
      update(fresh);
    },
  };
}

// The attention of one kind of site: all heads, the open one at full size, and the text coloured by it.
function groupView(group) {
  const { patterns } = group;
  const full = (row, column) => {
    const packed = patterns.full[`${row},${column}`];
    return packed ? { grid: unpack(packed), index: 0 } : null;
  };
  let current = null;
  const weight = (query, key) => (current === null ? 0 : current.grid.value(current.index, query, key));
  const look = lookView({ queries: group.queries, keys: group.keys, weight, label: group.name });
  const view = explorer({
    rows: patterns.rows, columns: patterns.columns, thumbnails: unpack(patterns.thumbnails), present: patterns.present, queries: group.queries, keys: group.keys, label: patterns.label,
    title: patterns.title, pooledBy: patterns.pooled,
    full: (row, column) => {
      const found = full(row, column);
      if (found !== null) { current = found; look.show({ weight }); }
      return found;
    },
  });
  const first = Object.keys(patterns.full)[0];
  if (first) view.open(...first.split(",").map(Number));
  return element("div", {}, frame(view, { name: patterns.name, title: patterns.title }), element("div", { class: "card" }, element("h3", {}, "Through the head that is open"), look.element));
}

export function attentionView(payload) {
  return element("main", { class: "cell" },
    element("h1", {}, element("bdi", {}, payload.title)),
    element("p", {}, element("bdi", {}, payload.text)),
    (payload.prediction ?? []).length ? element("ul", { class: "prediction" }, ...payload.prediction.map(([label, share]) => element("li", {}, element("bdi", {}, label), ` ${number(share, 3)}`))) : null,
    ...payload.groups.map(groupView));
}
