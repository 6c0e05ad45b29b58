// The controls of edits: what is switched on, as the server takes it.

import { element, number, once } from "./dom.js";

function labelled(label, control, more = null) {
  control.id = control.id || once("control");
  return element("div", { class: "field" }, element("label", { for: control.id }, label), control, more);
}

function select(name, options, value = options[0]?.[0]) {
  const node = element("select", { data: { control: name } }, ...options.map(([key, label]) => element("option", { value: key }, label)));
  if (value !== undefined) node.value = value;
  return { element: node, get: () => node.value, set: (next) => { node.value = next; } };
}

// A slider with a box for the exact number. `log` puts powers of ten at even distances.
function slider(name, label, { low, high, step = 1, value, log = false }) {
  const place = (given) => (log ? Math.log10(Math.max(given, low)) : given);
  const range = element("input", { type: "range", min: place(low), max: place(high), step: log ? 0.05 : step, data: { control: `${name}-slider` }, "aria-label": `${label}, slider` });
  const box = element("input", { type: "number", min: low, max: high, step: log ? "any" : step, data: { control: name }, class: "exact" });
  const set = (next) => {
    box.value = String(next);
    range.value = String(place(next));
    range.setAttribute("aria-valuetext", number(next));
  };
  range.addEventListener("input", () => {
    const next = log ? Number((10 ** Number(range.value)).toPrecision(2)) : Number(range.value);
    box.value = String(next);
    range.setAttribute("aria-valuetext", number(next));
  });
  box.addEventListener("input", () => { if (box.value !== "") range.value = String(place(Number(box.value))); });
  set(value);
  return {
    element: labelled(label, box, range),
    get: () => Math.min(Number(range.dataset.most ?? high), Math.max(low, Number(box.value) || low)),
    set,
    bound: (most) => { range.max = String(most); box.max = String(most); range.dataset.most = String(most); },
  };
}

function checkbox(name, label) {
  const box = element("input", { type: "checkbox", data: { control: name }, id: once("check") });
  return { element: element("div", { class: "field inline" }, box, element("label", { for: box.id }, label)), get: () => box.checked, set: (next) => { box.checked = next; } };
}

// One edit: a box that switches it on, and its parameters.
function part(name, title, controls, { collect, spread, missing = "" }) {
  const on = element("input", { type: "checkbox", data: { edit: name }, id: once("edit"), disabled: Boolean(missing) });
  const node = element("fieldset", { class: "edit" }, element("legend", {}, on, " ", element("label", { for: on.id }, title)),
    missing ? element("p", { class: "note" }, missing) : element("div", { class: "parameters" }, ...controls.map((control) => control.element ?? control)));
  node.addEventListener("input", (event) => { if (event.target !== on) on.checked = true; });
  return {
    name, element: node,
    get: () => (on.checked && !missing ? collect() : null),
    set: (values) => { on.checked = Boolean(values) && !missing; if (values) spread(values); },
  };
}

// All edits that the model can have; `changed()` is called whenever one of them is moved.
export function editControls(about, changed) {
  const total = about.sites.reduce((sum, site) => sum + site.heads, 0);
  const orders = about.orders.map(({ id, label }) => [id, label]);
  const averages = about.averages.map(({ id, label }) => [id, label]);
  const unmeasured = averages.length ? "" : "No averages of this model are known. Measure them (attrim measure MODEL … --stats mean --output FOLDER) and start the server with --averages FOLDER, or with a run that has them.";

  const rule = select("threshold-rule", [["bar", "above a bar"], ["top", "the largest of each row"], ["mass", "a share of each row's mass"]]);
  const bar = slider("threshold", "bar", { low: 1e-5, high: 1, value: 0.02, log: true });
  const relative = select("threshold-relative", [["one", "the bar itself"], ["uniform", "times 1 / keys"], ["row-maximum", "times the row's largest"]]);
  const top = slider("threshold-top", "weights to keep", { low: 1, high: 64, value: 8 });
  const mass = slider("threshold-mass", "mass to keep", { low: 0.01, high: 1, step: 0.01, value: 0.9 });
  const renormalize = checkbox("threshold-renormalize", "divide each row by what is left");
  const byRule = { bar, top, mass };
  const relativeField = labelled("relative to", relative.element);
  const showRule = () => {
    for (const [key, control] of Object.entries(byRule)) control.element.hidden = key !== rule.get();
    relativeField.hidden = rule.get() !== "bar";
  };
  rule.element.addEventListener("change", showRule);
  showRule();
  const threshold = part("threshold", "Threshold: zero small weights", [labelled("keep", rule.element), bar, relativeField, top, mass, renormalize], {
    collect: () => ({ rule: rule.get(), value: byRule[rule.get()].get(), relative_to: rule.get() === "bar" ? relative.get() : "one", renormalize: renormalize.get() }),
    spread: (values) => { rule.set(values.rule); byRule[values.rule].set(values.value); relative.set(values.relative_to ?? "one"); renormalize.set(values.renormalize ?? false); showRule(); },
  });

  const method = select("quantize-method", about.methods.map(({ name }) => [name, name]), about.methods.find(({ name }) => name === "linear-slog-clamped-midval")?.name);
  const bits = slider("quantize-bits", "bits", { low: 1, high: 16, value: 3 });
  const takesBits = () => about.methods.find(({ name }) => name === method.get())?.bits ?? false;
  const showBits = () => { bits.element.hidden = !takesBits(); };
  method.element.addEventListener("change", showBits);
  showBits();
  const quantize = part("quantize", "Quantise: few values", [labelled("method", method.element), bits], {
    collect: () => ({ method: method.get(), bits: takesBits() ? bits.get() : null }),
    spread: (values) => { method.set(values.method); if (values.bits) bits.set(values.bits); showBits(); },
  });

  const size = slider("window-size", "keys on a side", { low: 1, high: 128, value: 8 });
  const first = slider("window-first", "first tokens kept", { low: 0, high: 32, value: 1 });
  const windowed = part("window", "Window: near keys and the first", [size, first], {
    collect: () => ({ size: size.get(), first: first.get() }),
    spread: (values) => { size.set(values.size); first.set(values.first ?? 0); },
  });

  const patternAverages = select("pattern-averages", averages);
  const tau = slider("pattern-tau", "tau, the share of cells removed", { low: 0, high: 1, step: 0.01, value: 0.5 });
  const scope = select("pattern-scope", [["layer", "of each layer"], ["model", "of the whole model"], ["head", "of each head"], ["row", "of each row"]]);
  const pattern = part("pattern", "Pattern: one sparse pattern for all inputs", [labelled("averages", patternAverages.element), tau, labelled("cells are ranked", scope.element)], {
    missing: unmeasured,
    collect: () => ({ averages: patternAverages.get(), tau: tau.get(), scope: scope.get() }),
    spread: (values) => { patternAverages.set(values.averages); tau.set(values.tau); scope.set(values.scope ?? "layer"); },
  });

  const constantAverages = select("constant-averages", averages);
  const constantOrder = select("constant-order", orders);
  const constantHeads = slider("constant-heads", "heads", { low: 1, high: total, value: Math.max(1, Math.round(total / 2)) });
  const constant = part("constant", "Constant heads: averages in place of attention", [labelled("averages", constantAverages.element), labelled("in the order of", constantOrder.element), constantHeads], {
    missing: unmeasured,
    collect: () => ({ averages: constantAverages.get(), order: constantOrder.get(), heads: constantHeads.get() }),
    spread: (values) => { constantAverages.set(values.averages); constantOrder.set(values.order); constantHeads.set(values.heads); },
  });

  const offOrder = select("off-order", orders);
  const offHeads = slider("off-heads", "heads", { low: 1, high: total, value: Math.max(1, Math.round(total / 4)) });
  const off = part("off", "Heads off", [labelled("in the order of", offOrder.element), offHeads], {
    collect: () => ({ order: offOrder.get(), heads: offHeads.get() }),
    spread: (values) => { offOrder.set(values.order); offHeads.set(values.heads); },
  });

  const parts = [threshold, quantize, off, windowed, constant, pattern];
  const none = element("button", { type: "button", class: "button small", on: { click: () => { set({}); changed(); } } }, "All edits off");
  const node = element("div", { class: "card edits" }, element("div", { class: "row between" }, element("h2", { class: "flat" }, "Edits"), none), ...parts.map((each) => each.element),
    element("p", { class: "note" }, "Applied in this order: window, pattern, constant heads, threshold, quantise, heads off."));
  node.addEventListener("input", () => changed());
  function set(values) {
    for (const each of parts) each.set(values[each.name] ?? null);
  }
  const get = () => Object.fromEntries(parts.map((each) => [each.name, each.get()]).filter(([, values]) => values !== null));
  return { element: node, get, set };
}
