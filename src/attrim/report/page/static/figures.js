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
  return chart.title || chart.name.replaceAll("-", " ");
}

// A framed figure; drawn when it comes near the window.
export function figure(chart, { name = chart.name, title = nameOf(chart) } = {}) {
  if (chart.kind === "Table") return frame(table(chart), { name, title });
  const place = element("div", { class: "later", data: { figure: name } });
  whenNear(place, () => place.replaceChildren(frame(viewOf(chart), { name, title })));
  return place;
}
