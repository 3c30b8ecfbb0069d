// The page: chooses the view, the theme, and handles keys.

import { h, fill } from "./dom.js";
import { follow } from "./api.js";
import { Runs } from "./runs.js";
import { Run } from "./run.js";
import { Study } from "./study.js";

const KEYS = [
  ["/", "search"], ["j k or ↓ ↑", "next, previous run; ↓ ↑ also in a list of conversations"], ["x or space", "select a run"], ["Enter", "open it"], ["c s d", "curves, settings, difference"],
  ["1 … 8", "parts of a run's page"], ["Esc", "back; in a chart: zoom out"], ["← →", "move along a focused chart (Shift: faster)"], ["t", "light or dark"], ["?", "this list"],
];
const main = document.getElementById("main");
const dialog = document.getElementById("dialog");
let view = null;

function route() {
  const [, kind, id, rest] = location.hash.match(/^#\/(run|study)\/([^/?]+)(?:\/(.*))?$/) ?? [];
  if (kind === "run" && view instanceof Run && view.id === decodeURIComponent(id)) { view.show(rest); return; }
  view?.close();
  if (kind === "run") view = new Run(main, decodeURIComponent(id), rest);
  else if (kind === "study") view = new Study(main, decodeURIComponent(id));
  else view = new Runs(main);
  document.title = kind ? `${decodeURIComponent(id)} – runnel board` : "runnel board";
  scrollTo(0, 0);
}

function flip() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try { localStorage.setItem("theme", next); } catch { /* for this visit only */ }
  dispatchEvent(new Event("themechange"));
}

function help() {
  fill(dialog, h("h2", {}, "Keys"), h("table", {}, KEYS.map(([key, what]) => h("tr", {}, h("td", {}, h("kbd", {}, key)), h("td", {}, what)))),
    h("form", { method: "dialog" }, h("button", {}, "close")));
  dialog.showModal();
}

addEventListener("keydown", (event) => {
  if (event.target.matches("input, textarea, select") || event.metaKey || event.ctrlKey || event.altKey || dialog.open) {
    if (event.key === "Escape" && event.target.matches("input")) event.target.blur();
    return;
  }
  const { key } = event;
  if (key === "t") flip();
  else if (key === "?") help();
  else if (key === "/" && view.search) { event.preventDefault(); view.search.focus(); }
  else if (key === "Escape" && !(view instanceof Runs) && !event.target.matches(".plot")) location.hash = "#/";
  else if ("csd".includes(key) && view instanceof Runs) { view.tab = { c: "curves", s: "settings", d: "difference" }[key]; view.drawSide(); }
  else if ((key === "j" || key === "ArrowDown") && view instanceof Runs && event.target === document.body) { event.preventDefault(); main.querySelector("tbody tr[tabindex='0']")?.focus(); }
  else if (/^[1-9]$/.test(key) && view instanceof Run) view.nth(Number(key) - 1);
});
document.getElementById("theme").addEventListener("click", flip);
document.getElementById("help").addEventListener("click", help);
addEventListener("hashchange", route);
const live = document.getElementById("live");
follow((state) => { live.dataset.state = state; live.textContent = state === "live" ? "live" : "not connected"; });
route();
