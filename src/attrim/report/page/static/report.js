// The report: one run from its question to its tables, or several runs side by side with their differences named.

import { element, once, themeSwitch, whenNear } from "./dom.js";
import { frame } from "./export.js";
import { figure } from "./figures.js";
import { explorer, headMatrix } from "./matrix.js";
import { unpack } from "./packed.js";
import { table } from "./tables.js";
import { attentionView } from "./show.js";

const GROUPS = [
  ["Curves", ["Curve"]],
  ["Training", ["TrainingSteps"]],
  ["Distributions", ["Distribution"]],
  ["Comparisons", ["Bars"]],
  ["Patterns", ["Pattern"]],
  ["Texts and images", ["RelevanceStrip", "TokenStrip", "ImageRegions"]],
  ["Single heads", ["HeadMatrix"]],
];

// Panels belong where what they show belongs.
function groupOf(chart) {
  const kind = chart.kind === "Panels" ? chart.charts[0].kind : chart.kind;
  return GROUPS.find(([, kinds]) => kinds.includes(kind))?.[0] ?? "Curves";
}

// Average patterns of all heads: thumbnails on one canvas, and the head that is open at full size.
export function patternsView(patterns) {
  const marked = Object.keys(patterns.full).map((key) => key.split(",").map(Number));
  const every = marked.length >= patterns.present.filter(Boolean).length;
  const view = explorer({
    rows: patterns.rows, columns: patterns.columns, thumbnails: unpack(patterns.thumbnails), present: patterns.present, queries: patterns.queries ?? [], keys: patterns.keys ?? [],
    label: patterns.label, title: patterns.title, pooledBy: patterns.pooled, marked: every ? [] : marked,
    full: (row, column) => {
      const packed = patterns.full[`${row},${column}`];
      return packed ? { grid: unpack(packed), index: 0 } : null;
    },
  });
  if (!every && marked.length) view.note = `Framed heads are embedded in full; the others as thumbnails${patterns.pooled > 1 ? `, each cell the largest of ${patterns.pooled} × ${patterns.pooled}` : ""}.`;
  return view;
}

function questionView(run) {
  const rows = run.asked.options.map(([name, value, usual, help]) => [name, value, usual, help]);
  const columns = ["field", "value", "default", "what it is"].map((name) => ({ kind: "Column", name }));
  return element("div", { class: "card" },
    element("p", {}, run.asked.text),
    element("dl", { class: "facts" }, ...[["Study", run.study], ["Model", run.model], ["Task", run.task], ["State", run.complete ? "complete" : "not complete"]]
      .filter(([, value]) => value).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, element("bdi", {}, value))))),
    rows.length ? table({ kind: "Table", name: "asked", title: "Fields that differ from their defaults", columns, rows }).element : element("p", { class: "note" }, "All fields have their defaults."));
}

function configurationView(run) {
  const columns = ["key", "value"].map((name) => ({ kind: "Column", name }));
  return frame(table({ kind: "Table", name: "configuration", columns, rows: run.configuration }), { name: "configuration", title: "Configuration of the run" });
}

function findingsView(run) {
  if (!run.sentences.length) return element("p", { class: "note" }, "This study says nothing in sentences; see its tables.");
  return element("div", { class: "card findings" }, ...run.sentences.map((sentence) => element("p", {}, sentence)));
}

// What a run has in each section: `Map(section → [{ key, make() }])`.
function contentsOf(run, runs) {
  const several = runs.length > 1;
  const found = new Map();
  const add = (section, key, make) => {
    if (!found.has(section)) found.set(section, []);
    found.get(section).push({ key, make });
  };
  const file = (name) => (several ? `${run.name}-${name}` : name);
  let explorers = [];
  add("Findings", "findings", () => findingsView(run));
  add("What was asked", "asked", () => questionView(run));
  if (run.heads.length) {
    add("Heads", "heads", () => {
      const open = (chart, row, column) => {
        for (const { patterns, view } of explorers) {
          const at = patterns.rows.indexOf(`${chart.roles[row]} ${chart.layers[row]}`);
          if (at >= 0) {
            view().open(at, column);
            view().element.scrollIntoView({ block: "center" });
            return;
          }
        }
      };
      const view = headMatrix(run.heads, { open: run.patterns.length ? open : null });
      return frame(view, { name: file("heads"), title: "Every head, by any number of the run", note: run.patterns.length ? "Enter or a click opens the average pattern of a head." : "" });
    });
  }
  explorers = run.patterns.map((patterns) => {
    const place = element("div", { class: "later" });
    let made = null;
    const view = () => {
      if (made === null) {
        made = patternsView(patterns);
        place.replaceChildren(frame(made, { name: file(patterns.name), title: patterns.title, note: made.note ?? "" }));
      }
      return made;
    };
    add("Average patterns", patterns.name, () => { whenNear(place, view); return place; });
    return { patterns, view };
  });
  for (const [section] of GROUPS) {
    for (const chart of run.figures.filter((one) => groupOf(one) === section)) add(section, chart.name, () => figure(chart, { name: file(chart.name) }));
  }
  for (const chart of run.tables) add("Tables", chart.name, () => figure(chart, { name: file(chart.name) }));
  add("Configuration", "configuration", () => configurationView(run));
  return found;
}

const FIGURES = new Set(GROUPS.map(([name]) => name));
const ORDER = ["Findings", "What was asked", "Heads", "Average patterns", ...GROUPS.map(([name]) => name), "Tables", "Configuration"];

function section(title, level, ...children) {
  const id = once(title.toLowerCase().replaceAll(/[^a-z]+/g, "-"));
  return { title, id, node: element("section", { "aria-labelledby": id }, element(`h${level}`, { id, tabindex: "-1" }, title), ...children) };
}

// Sections of some runs; what has the same name in several runs stands side by side.
function sectionsOf(payload, level) {
  const { runs } = payload;
  const contents = runs.map((run) => contentsOf(run, runs));
  const sections = [];
  if (payload.differences) {
    const { configuration, results } = payload.differences;
    sections.push(section("Differences", level, frame(table(configuration), { name: "differences-configuration", title: configuration.title }),
      ...results.map((one) => frame(table(one), { name: one.name, title: one.title }))));
  }
  for (const name of ORDER) {
    const keys = [...new Set(contents.flatMap((found) => (found.get(name) ?? []).map((part) => part.key)))];
    if (!keys.length) continue;
    const parts = keys.map((key) => {
      const own = contents.map((found) => (found.get(name) ?? []).filter((part) => part.key === key));
      if (runs.length === 1) return own[0].map((part) => part.make());
      return element("div", { class: "columns" }, ...runs.map((run, at) => element("div", { class: "of-run" }, element("p", { class: "run-name" }, element("bdi", {}, run.name)),
        own[at].length ? own[at].map((part) => part.make()) : element("p", { class: "note" }, "This run has none."))));
    });
    sections.push(section(name, level, runs.length === 1 ? element("div", { class: FIGURES.has(name) ? "figures" : "" }, parts) : parts));
  }
  return sections;
}

// Go to a section, and again when what is drawn on the way there has its height.
function jump(event) {
  const target = document.getElementById(event.currentTarget.dataset.to);
  target.scrollIntoView();
  target.focus({ preventScroll: true });
  for (const wait of [100, 300]) setTimeout(() => { if (document.activeElement === target) target.scrollIntoView(); }, wait);
  event.preventDefault();
}

// The list of contents; a page in a frame has no address of its own, so links scroll by themselves.
function contentsList(sections) {
  const links = sections.map(({ title, id }) => element("li", {}, element("a", { href: `#${id}`, data: { to: id }, on: { click: jump } }, title)));
  return element("nav", { class: "contents", "aria-label": "Contents" }, element("ul", {}, ...links));
}

function laidOut(sections) {
  return element("div", { class: "with-contents" }, contentsList(sections), element("div", { class: "sections" }, ...sections.map(({ node }) => node)));
}

// Everything of one run.
export function runView(run, { level = 2 } = {}) {
  return laidOut(sectionsOf({ runs: [run], differences: null }, level));
}

// Several runs side by side, their differences first.
export function compareView(payload, { level = 2 } = {}) {
  return laidOut(sectionsOf(payload, level));
}

// A part of a report that stands alone in a notebook cell: charts and tables under a title.
function cellView(payload) {
  return element("main", { class: "cell" }, payload.title ? element("h1", {}, payload.title) : null,
    payload.heads?.length ? frame(headMatrix(payload.heads), { name: "heads", title: payload.heads.length > 1 ? "Every head" : payload.heads[0].title || payload.heads[0].label }) : null,
    ...(payload.patterns ?? []).map((patterns) => {
      const view = patternsView(patterns);
      return frame(view, { name: patterns.name, title: patterns.title, note: view.note ?? "" });
    }),
    ...payload.charts.map((chart) => figure(chart)));
}

// Build the page of the payload that is embedded in it.
export function start() {
  const payload = JSON.parse(document.getElementById("payload").textContent);
  const root = document.getElementById("attrim");
  if (payload.page === "attention") root.replaceChildren(attentionView(payload));
  else if (payload.page === "cell") root.replaceChildren(cellView(payload));
  else {
    document.title = payload.title;
    root.replaceChildren(
      element("header", { class: "page-header" }, element("div", {}, element("h1", {}, element("bdi", {}, payload.title)),
        element("p", { class: "note" }, `Written by attrim ${payload.attrim}. Everything is in this file; it loads nothing.`)), themeSwitch()),
      element("main", {}, laidOut(sectionsOf(payload, 2))));
  }
  fitFrame(root);
  document.documentElement.dataset.ready = "yes";
}

const HIGHEST = 1400; // pixels of a notebook cell; what is longer scrolls

// In a notebook, make the frame as high as the page.
function fitFrame(root) {
  let holder = null;
  try {
    holder = window.frameElement;
  } catch {
    return; // a frame of another origin keeps its height
  }
  if (holder === null) return;
  new ResizeObserver(() => {
    holder.style.height = `${Math.min(HIGHEST, Math.ceil(root.getBoundingClientRect().height) + 16)}px`;
  }).observe(root);
}
