// The runs of the server: a list to search, one run, several side by side, and the progress of those that are going on.

import { get, superseded } from "./api.js";
import { announce, clear, element, number, once } from "./dom.js";
import { frame } from "./export.js";
import { compareView, runView } from "./report.js";
import { table } from "./tables.js";

const OFTEN = 2000;
const SELDOM = 15000;

export function when(seconds) {
  if (!seconds) return "";
  const date = new Date(1000 * seconds);
  const two = (value) => String(value).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

function progressText(run) {
  const parts = [`${run.settings} ${run.settings === 1 ? "result" : "results"}`];
  if (run.parts[1]) parts.push(`${run.parts[0]} of ${run.parts[1]} trainings`);
  return parts.join(", ");
}

function state(run) {
  return element("span", { class: `state ${run.state.replace(" ", "-")}` }, run.state);
}

// Call `work` now and again while the node is on the page; what it returns says in how many milliseconds.
function repeat(node, work) {
  const controller = new AbortController();
  let timer = 0;
  const turn = async () => {
    let wait = SELDOM;
    try {
      wait = await work(controller.signal);
    } catch (error) {
      if (!superseded(error)) announce(error.message);
    }
    if (node.isConnected || !node.dataset.shown) timer = setTimeout(turn, document.hidden ? SELDOM : wait);
    node.dataset.shown = "yes";
  };
  turn();
  return () => { clearTimeout(timer); controller.abort(); };
}

function field(label, control) {
  control.id = control.id || once("field");
  return element("div", { class: "field" }, element("label", { for: control.id }, label), control);
}

function filterOf(name, runs, key) {
  const values = [...new Set(runs.map((run) => run[key]).filter(Boolean))].sort();
  return element("select", { data: { key } }, element("option", { value: "" }, `any ${name}`), ...values.map((value) => element("option", { value }, value)));
}

// The list of all runs.
export function runsView() {
  const holder = element("div", { class: "runs" });
  const body = element("tbody");
  const note = element("p", { class: "note", role: "status" }, "Looking for runs…");
  const search = element("input", { type: "search", placeholder: "name, study, model or task", autocomplete: "off" });
  const filters = element("div", { class: "row filters" });
  const compare = element("button", { type: "button", class: "button primary", disabled: true }, "Compare the chosen runs");
  const chosen = new Set();
  let runs = [];
  let known = "";
  const fits = (run) => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = [run.name, run.study, run.model, run.task].join(" ").toLowerCase();
    const selects = [...filters.querySelectorAll("select")];
    return words.every((word) => text.includes(word)) && selects.every((select) => !select.value || run[select.dataset.key] === select.value);
  };
  const choose = (run, box) => {
    if (box.checked) chosen.add(run.id);
    else chosen.delete(run.id);
    compare.disabled = chosen.size < 2;
  };
  const row = (run) => {
    const box = element("input", { type: "checkbox", "aria-label": `Choose ${run.name} to compare`, disabled: !run.findings });
    box.checked = chosen.has(run.id);
    box.addEventListener("change", () => choose(run, box));
    return element("tr", { data: { run: run.id } },
      element("td", {}, box),
      element("td", {}, element("a", { href: `#/run/${run.id}` }, element("bdi", {}, run.name)), run.problem ? element("div", { class: "note" }, element("bdi", {}, run.problem)) : null),
      element("td", {}, state(run)), element("td", {}, progressText(run)),
      ...[run.study, run.model, run.task].map((text) => element("td", {}, element("bdi", {}, text))), element("td", {}, when(run.changed)));
  };
  const draw = () => {
    const shown = runs.filter(fits);
    body.replaceChildren(...shown.map(row));
    note.textContent = runs.length ? `${shown.length} of ${runs.length} ${runs.length === 1 ? "run" : "runs"}` : "There is no run in these folders yet; a study writes one (attrim sparsity, constant, prune, heads, dynamics).";
  };
  const refilter = () => {
    const before = Object.fromEntries([...filters.querySelectorAll("select")].map((select) => [select.dataset.key, select.value]));
    clear(filters).append(...[["study", "study"], ["model", "model"], ["task", "task"], ["state", "state"]].map(([name, key]) => {
      const select = filterOf(name, runs, key);
      if ([...select.options].some((option) => option.value === before[key])) select.value = before[key];
      select.addEventListener("change", draw);
      return field(name, select);
    }));
  };
  search.addEventListener("input", draw);
  compare.addEventListener("click", () => { location.hash = `#/compare/${[...chosen].join(",")}`; });
  const heads = ["choose", "run", "state", "progress", "study", "model", "task", "last written"];
  holder.append(element("h1", { tabindex: "-1" }, "Runs"), element("div", { class: "row filters" }, field("search", search), filters), element("div", { class: "row" }, note, compare),
    element("div", { class: "scroll list", tabindex: "0", role: "region", "aria-label": "Runs" },
      element("table", { "aria-label": "Runs" }, element("thead", {}, element("tr", {}, ...heads.map((name) => element("th", { scope: "col", class: "plain" }, name)))), body)));
  const stop = repeat(holder, async (signal) => {
    const found = (await get("/api/runs", signal)).runs;
    const text = JSON.stringify(found);
    if (text !== known) {
      known = text;
      runs = found;
      refilter();
      draw();
    }
    return runs.some((run) => run.state === "going on") ? OFTEN : SELDOM;
  });
  return { element: holder, stop };
}

function resultsTable(results) {
  const metrics = [...new Set(results.flatMap((result) => Object.keys(result.metrics)))];
  const columns = [{ name: "setting" }, ...metrics.map((name) => ({ name, form: "general", digits: 5 })), { name: "stored" }];
  const rows = results.map((result) => [result.name, ...metrics.map((name) => result.metrics[name] ?? null), when(result.stored)]);
  return table({ kind: "Table", name: "results", title: "Results so far", columns, rows });
}

// A run that is going on, or that has no findings: what it holds so far.
function progressView(first) {
  const about = element("div", { class: "card" });
  const results = element("div");
  const draw = ({ run, results: stored }) => {
    const last = stored.at(-1);
    clear(about).append(element("dl", { class: "facts" }, ...[["State", state(run)], ["Progress", progressText(run)], ["Begun", when(run.begun)], ["Last written", when(run.changed)], ["Last result", last ? element("bdi", {}, last.name) : "–"]]
      .map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)))));
    clear(results).append(stored.length ? frame(resultsTable(stored), { name: "results", title: "Results so far" }) : element("p", { class: "note" }, "Nothing is stored yet."));
  };
  draw(first);
  const configuration = table({ kind: "Table", name: "configuration", columns: [{ name: "key" }, { name: "value" }], rows: Object.entries(first.configuration).map(([key, value]) => [key, typeof value === "string" ? value : JSON.stringify(value)]) });
  const holder = element("div", {}, about, results, frame(configuration, { name: "configuration", title: "Configuration of the run" }));
  return { element: holder, draw };
}

// One run: everything that it found, or how far it is.
export function oneRunView(id) {
  const title = element("h1", { tabindex: "-1" }, "Run");
  const place = element("div", {}, element("p", { class: "note", role: "status" }, "Reading the run…"));
  const holder = element("div", {}, title, place);
  let shown = "";
  let progress = null;
  const stop = repeat(holder, async (signal) => {
    const found = await get(`/api/runs/${encodeURIComponent(id)}/progress`, signal).catch((error) => {
      if (!superseded(error)) clear(place).append(element("p", { class: "problem", role: "alert" }, error.message));
      throw error;
    });
    const { run } = found;
    title.replaceChildren(element("bdi", {}, run.name));
    const stamp = `${run.state} ${run.changed} ${run.settings}`;
    if (stamp !== shown) {
      if (run.findings && run.state !== "going on") {
        try {
          const payload = await get(`/api/payload?run=${encodeURIComponent(id)}`, signal);
          clear(place).append(runView(payload.runs[0]));
        } catch (error) {
          if (superseded(error)) throw error;
          progress = progressView(found);
          clear(place).append(element("p", { class: "problem", role: "alert" }, error.message), progress.element);
        }
      } else if (progress === null) {
        progress = progressView(found);
        clear(place).append(progress.element);
      } else progress.draw(found);
      shown = stamp;
    }
    return run.state === "going on" ? OFTEN : SELDOM;
  });
  return { element: holder, stop };
}

// Several runs side by side.
export function comparedView(ids) {
  const place = element("div", {}, element("p", { class: "note", role: "status" }, "Reading the runs…"));
  const holder = element("div", {}, element("h1", { tabindex: "-1" }, `${number(ids.length)} runs side by side`), place);
  const controller = new AbortController();
  get(`/api/payload?${ids.map((id) => `run=${encodeURIComponent(id)}`).join("&")}`, controller.signal)
    .then((payload) => clear(place).append(compareView(payload)))
    .catch((error) => { if (!superseded(error)) clear(place).append(element("p", { class: "problem", role: "alert" }, error.message)); });
  return { element: holder, stop: () => controller.abort() };
}
