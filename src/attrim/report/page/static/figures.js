// Any chart of `attrim.core.charts` as a figure with its title and buttons that save it.

import { element, whenNear } from "./dom.js";
import { panels, plot } from "./charts.js";
import { frame } from "./export.js";
import { headMatrix, patternView } from "./matrix.js";
import { imageRegions, relevance, tokenStrip } from "./tokens.js";
import { table } from "./tables.js";

const VIEWS = {
  Curve: plot, TrainingSteps: plot, Bars: plot, Distribution: plot, Panels: (chart) => panels(chart, patternView), HeadMatrix: (chart) => headMatrix([chart]),
  Pattern: patternView, TokenStrip: tokenStrip, ImageRegions: imageRegions, RelevanceStrip: relevance, Table: table,
};

// The bare view of a chart.
export function viewOf(chart) {
  const make = VIEWS[chart.kind];
  if (make === undefined) throw new Error(`There is no view of a ${chart.kind}.`);
  return make(chart);
}

function nameOf(chart) {
  return chart.title || (chart.name.charAt(0).toUpperCase() + chart.name.slice(1)).replaceAll("-", " ");
}

// Whether a figure needs the whole width of the page.
function isWide(chart) {
  if (chart.kind === "RelevanceStrip") return (chart.texts ?? []).reduce((sum, words) => sum + words.tokens.length, 0) > 60;
  const bars = chart.kind === "Bars" && ((chart.sections ?? []).length > 0 || (chart.labels ?? []).length > 12);
  return bars || !["Curve", "TrainingSteps", "Distribution", "Bars", "HeadMatrix", "ImageRegions"].includes(chart.kind);
}

// A framed figure; drawn when it comes near the window.
export function figure(chart, { name = chart.name, title = nameOf(chart) } = {}) {
  const place = element("div", { class: isWide(chart) ? "later wide" : "later" });
  if (chart.kind === "Table") return element("div", { class: "wide" }, frame(table(chart), { name, title }));
  whenNear(place, () => place.replaceChildren(frame(viewOf(chart), { name, title })));
  return place;
}
