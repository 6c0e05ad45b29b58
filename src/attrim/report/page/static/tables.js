// Tables of texts and numbers: sorted by any column, copied as CSV.

import { announce, element, plain } from "./dom.js";
import { toCsv } from "./export.js";

const LONG = 200; // more rows than this are shown on demand
const LETTERS = 24; // a longer text may fold, but not to a few letters a line

// A cell as `attrim.core.charts.Column.text` writes it.
export function cellText(column, cell) {
  const form = column.form ?? "text";
  const digits = column.digits ?? 2;
  if (cell === null || cell === undefined) return form === "text" ? "" : "-";
  if (typeof cell === "object") cell = plain(cell);
  if (typeof cell === "boolean") return cell ? "True" : "False";
  if (typeof cell === "string" || form === "text") return String(cell);
  if (!Number.isFinite(cell)) return String(cell);
  if (form === "percent") return `${(100 * cell).toFixed(digits)} %`;
  if (form === "count") return Math.round(cell).toLocaleString("en-US");
  if (form === "number") return cell.toFixed(digits);
  const text = cell.toPrecision(Math.max(1, digits));
  return text.includes("e") ? text.replace(/\.?0+e/, "e") : String(Number(text));
}

function value(cell) {
  if (cell === null || cell === undefined) return null;
  return typeof cell === "object" ? plain(cell) : cell;
}

function compare(one, other) {
  if (one === null || other === null) return (one === null) - (other === null);
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), undefined, { numeric: true });
}

export function table(chart) {
  const columns = chart.columns;
  const rows = chart.rows;
  const sections = new Set(chart.sections ?? []);
  let sorted = { column: -1, falling: false };
  let whole = rows.length <= LONG;
  const body = element("tbody");
  const heads = columns.map((column, at) => {
    const button = element("button", { type: "button", class: "sort" }, column.name || " ", element("span", { "aria-hidden": "true", class: "arrow" }));
    button.addEventListener("click", () => {
      sorted = { column: at, falling: sorted.column === at && !sorted.falling };
      fill();
      announce(`Sorted by ${column.name}, ${sorted.falling ? "falling" : "rising"}.`);
    });
    return element("th", { scope: "col", class: (column.form ?? "text") === "text" ? "" : "number" }, button);
  });

  function fill() {
    let order = rows.map((_, at) => at);
    if (sorted.column >= 0) {
      order.sort((one, other) => compare(value(rows[one][sorted.column]), value(rows[other][sorted.column])) || one - other);
      if (sorted.falling) order.reverse();
    }
    heads.forEach((head, at) => {
      head.setAttribute("aria-sort", at !== sorted.column ? "none" : sorted.falling ? "descending" : "ascending");
    });
    if (!whole) order = order.slice(0, LONG);
    body.replaceChildren(...order.map((at) =>
      element("tr", { class: sorted.column < 0 && sections.has(at) ? "section" : "" },
        ...rows[at].map((cell, place) => {
          const numeric = (columns[place].form ?? "text") !== "text" || typeof cell === "number";
          const text = cellText(columns[place], cell);
          return element("td", { class: numeric ? "number" : text.length > LETTERS ? "long" : "" }, text);
        }))));
  }
  fill();

  const exported = () => [columns.map((column) => column.name), ...rows.map((row) => row.map(value))];
  const copy = element("button", { type: "button", class: "button small" }, "Copy as CSV");
  copy.addEventListener("click", async () => {
    const text = toCsv(exported());
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      copyByHand(text); // pages from disk and frames may have no clipboard
    }
    announce("Copied as CSV.");
  });
  const more = whole ? null : element("button", { type: "button", class: "button small" }, `Show all ${rows.length} rows`);
  more?.addEventListener("click", () => { whole = true; fill(); more.remove(); });
  const label = chart.title || chart.name;
  const node = element("div", { class: "table" },
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table: ${label}` },
      element("table", { "aria-label": label }, element("thead", {}, element("tr", {}, ...heads)), body)),
    element("div", { class: "row" }, copy, more),
    chart.caption ? element("p", { class: "note" }, chart.caption) : null);
  return { element: node, rows: exported };
}

function copyByHand(text) {
  const area = element("textarea", { class: "visually-hidden", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
