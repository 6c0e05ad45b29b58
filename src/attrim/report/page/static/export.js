// Save what is shown: SVG, PNG and CSV of every figure.

import { announce, element } from "./dom.js";

// Give a file to the user.
export function save(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = element("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
  announce(`Saved ${name}.`);
}

function cell(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  const text = String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function toCsv(rows) {
  return rows.map((row) => row.map(cell).join(",") + "\n").join("");
}

export function toSvg(node) {
  node.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(node);
}

// The picture as PNG, twice as fine as it is shown.
export async function toPng(node, factor = 2) {
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(toSvg(node))}`;
  await picture.decode();
  const canvas = element("canvas", { width: Math.ceil(factor * Number(node.getAttribute("width"))), height: Math.ceil(factor * Number(node.getAttribute("height"))) });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
}

// A view as a figure: its title, and buttons that save it.
export function frame(view, { name, title = "", note = "" } = {}) {
  const buttons = [];
  const button = (label, action) => element("button", { type: "button", class: "button small", "aria-label": `Save ${title || name} as ${label}`, on: { click: action } }, label);
  if (view.svg) {
    buttons.push(button("SVG", () => save(`${name}.svg`, "image/svg+xml", toSvg(view.svg()))));
    buttons.push(button("PNG", async () => save(`${name}.png`, "image/png", await toPng(view.svg()))));
  }
  if (view.rows) buttons.push(button("CSV", () => save(`${name}.csv`, "text/csv", toCsv(view.rows()))));
  return element("figure", { class: "card", data: { figure: name } },
    element("figcaption", {}, element("span", { class: "figure-title" }, title || name), element("span", { class: "toolbar" }, ...buttons)),
    view.element,
    note ? element("p", { class: "note" }, note) : null);
}
