// The page of `attrim serve`: runs, and a model to try edits on.

import { get } from "./api.js";
import { clear, element, themeSwitch } from "./dom.js";
import { liveView } from "./live.js";
import { comparedView, oneRunView, runsView } from "./runs.js";

let current = null;

function viewOf(route, about) {
  const [kind, rest = ""] = route.replace(/^#\/?/, "").split("/");
  if (kind === "run") return { tab: "runs", view: oneRunView(rest) };
  if (kind === "compare") return { tab: "runs", view: comparedView(rest.split(",").filter(Boolean)) };
  if (kind === "live" || (kind === "" && about.model !== null)) return { tab: "live", view: liveView(about) };
  return { tab: "runs", view: runsView() };
}

async function start() {
  // The token is kept as a cookie now; it must not stay in the address, which people copy.
  if (location.search) history.replaceState(null, "", location.pathname + location.hash);
  const main = element("main");
  const links = { runs: element("a", { href: "#/runs" }, "Runs"), live: element("a", { href: "#/live" }, "Live model") };
  document.body.replaceChildren(
    element("a", { class: "skip", href: "#main", on: { click: (event) => { event.preventDefault(); main.querySelector("h1")?.focus(); } } }, "Skip to the content"),
    element("header", { class: "page-header" }, element("div", { class: "row" }, element("span", { class: "brand" }, "attrim"), element("nav", { class: "tabs", "aria-label": "Views" }, links.live, links.runs)), themeSwitch()), main);
  let about;
  try {
    about = await get("/api/about");
  } catch (error) {
    main.append(element("h1", {}, "attrim"), element("p", { class: "problem", role: "alert" }, error.message));
    return;
  }
  const go = (focus) => {
    current?.stop?.();
    const { tab, view } = viewOf(location.hash, about);
    current = view;
    for (const [name, link] of Object.entries(links)) {
      if (name === tab) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    clear(main).append(view.element);
    document.title = `attrim: ${tab === "live" ? `live, ${about.model ?? "no model"}` : "runs"}`;
    if (focus) main.querySelector("h1")?.focus();
    document.documentElement.dataset.ready = "yes";
  };
  addEventListener("hashchange", () => go(true));
  go(false);
}

start();
