// All runs: a table to search and sort, and beside it the curves, the settings and the difference of what is selected.

import { h, fill, short, compact, seconds, percent, sparkline, pill, notice, choice, color, dash } from "./dom.js";
import { get, on, paced, kept } from "./api.js";
import { Panel } from "./panel.js";
import { Settings, Difference } from "./settings.js";

const COLUMNS = [
  ["name", "run", (r) => r.name],
  ["status", "status", (r) => r.status],
  ["score", "score", (r) => r.eval?.mean ?? r.score ?? -Infinity],
  ["curve", "", null],
  ["progress", "progress", (r) => r.progress],
  ["steps", "trained", (r) => r.steps || r.tokens || r.version],
  ["wall_s", "time", (r) => r.wall_s],
  ["created", "started", (r) => r.created],
];
const NUM_DRAWN = 200;

/** How far a run is, in steps, tokens or updates: not every run counts steps. */
const trained = (run) => {
  const [number, unit] = run.steps ? [run.steps, "steps"] : run.tokens ? [run.tokens, "tokens"] : [run.version, "updates"];
  return [compact(number, 3), h("span", { class: "soft unit" }, ` ${unit}`)];
};

const taskOf = (run) => `${run.subject || run.label} ${run.score_name}`;

/** One scale for the small curves of all runs of a task, so that they can be compared. */
function scales(runs) {
  const found = new Map();
  for (const run of runs) {
    const [low, high] = found.get(taskOf(run)) ?? [Infinity, -Infinity];
    found.set(taskOf(run), [Math.min(low, ...run.spark), Math.max(high, ...run.spark)]);
  }
  return found;
}

export class Runs {
  constructor(root) {
    this.root = root;
    this.runs = [];
    this.selected = new Set(kept.get("selected", []));
    this.sort = kept.get("sort", ["created", -1]);
    this.query = "";
    this.states = new Set();
    this.tab = kept.get("tab", "curves");
    this.at = 0;
    this.search = h("input", { id: "search", type: "search", placeholder: "search: name, recipe, tag:test, seed:1 ( / )", "aria-label": "search runs",
      oninput: () => { this.query = this.search.value; this.at = 0; this.draw(); } });
    this.chips = h("div", { class: "chips" });
    this.notes = h("div", {});
    this.table = h("div", { class: "scroll", id: "runs" });
    this.tabs = h("div", { class: "tabs", role: "tablist" });
    this.side = h("section", { class: "side", "aria-label": "selected runs" });
    this.panel = new Panel({ runs: () => this.drawn(), changed: () => this.draw() });
    this.element = h("div", { class: "two" },
      h("section", { class: "list", "aria-label": "runs" }, h("div", { class: "controls" }, this.search), this.chips, this.notes, this.table),
      h("div", { class: "right" }, this.tabs, this.side));
    fill(root, this.element);
    const soon = paced(() => this.refresh());
    this.off = on(() => soon());
    this.refresh();
  }

  close() {
    this.off();
    this.panel.close();
  }

  async refresh() {
    try {
      const found = await get("/api/runs");
      this.runs = found.runs;
      this.studies = found.studies;
      this.problem = found.problem;
      document.getElementById("root").textContent = found.root;
    } catch (error) {
      this.problem = error.message;
    }
    this.draw();
  }

  /** The runs that match the search and the chips. Trials of a study have a page of their own, and appear only if the search asks for them. */
  shown() {
    const words = this.query.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (run) => words.every((w) => {
      const [field, ...rest] = w.split(":"), what = rest.join(":");
      if (what && field === "tag") return run.tags.some((t) => t.toLowerCase().includes(what));
      if (what && field === "seed") return String(run.seed) === what;
      if (what && field in run) return String(run[field]).toLowerCase().includes(what);
      return `${run.id} ${run.label} ${run.tags.join(" ")} ${run.status}`.toLowerCase().includes(w);
    });
    const [column, way] = this.sort, by = COLUMNS.find(([c]) => c === column)?.[2] ?? ((r) => r.created);
    const order = (a, b) => { const x = by(a), y = by(b); return (x < y ? -1 : x > y ? 1 : a.id < b.id ? -1 : 1) * way; };
    const trials = words.some((w) => w.includes("tuning")) || this.runs.every((r) => r.tags.includes("tuning"));
    return this.runs.filter((r) => fits(r) && (trials || !r.tags.includes("tuning")) && (!this.states.size || this.states.has(r.status))).sort(order);
  }

  /** Runs on the right: those selected, or else all that are shown. */
  drawn() {
    const shown = this.shown(), chosen = shown.filter((r) => this.selected.has(r.id));
    const colors = new Map();
    for (const run of shown) if (!colors.has(run.group)) colors.set(run.group, colors.size);
    return (chosen.length ? chosen : shown).slice(0, NUM_DRAWN).map((run, i) => ({ ...run, color: color(i), dash: dash(i), groupColor: color(colors.get(run.group)),
      groupDash: dash(colors.get(run.group)), groupLabel: run.group_label, label: run.name }));
  }

  draw() {
    const shown = this.shown();
    this.at = Math.min(this.at, Math.max(shown.length - 1, 0));
    this.drawChips();
    const bad = this.runs.filter((r) => r.problems);
    fill(this.notes, this.problem ? notice([this.problem], "bad") : null,
      bad.length ? notice([`${bad.length === 1 ? `${bad[0].name} has` : `${bad.length} runs have`} damaged files; what can be read is shown, and the run's page says what is wrong.`]) : null);
    this.paint = new Map(this.drawn().map((r) => [r.id, this.panel.view.group ? r.groupColor : r.color]));
    this.scales = scales(shown);
    this.drawTable(shown);
    this.drawSide();
  }

  drawChips() {
    const counts = new Map(), tags = new Map();
    for (const run of this.runs) {
      if (run.tags.includes("tuning")) { tags.set("tuning", (tags.get("tuning") ?? 0) + 1); continue; }
      counts.set(run.status, (counts.get(run.status) ?? 0) + 1);
      run.tags.forEach((t) => tags.set(t, (tags.get(t) ?? 0) + 1));
    }
    const flip = (s) => { if (!this.states.delete(s)) this.states.add(s); this.draw(); };
    const look = (t) => { this.search.value = this.query = this.query === `tag:${t}` ? "" : `tag:${t}`; this.draw(); };
    fill(this.chips,
      [...counts].map(([s, n]) => h("button", { class: `chip ${s}`, "aria-pressed": String(this.states.has(s)), onclick: () => flip(s) }, `${s} ${n}`)),
      [...tags].map(([t, n]) => h("button", { class: "chip tag", "aria-pressed": String(this.query === `tag:${t}`), onclick: () => look(t) }, `#${t} ${n}`)),
      (this.studies ?? []).map((s) => h("a", { class: "chip", href: `#/study/${encodeURIComponent(s.id)}` }, `study ${s.name}${s.error ? " (damaged)" : ""}`)));
  }

  drawTable(shown) {
    const all = shown.length > 0 && shown.every((r) => this.selected.has(r.id));
    const head = h("tr", {}, h("th", {}, h("input", { type: "checkbox", checked: all, "aria-label": "select all shown", onchange: () => this.selectAll(shown, !all) })),
      COLUMNS.map(([key, label, by]) => h("th", { class: key, "aria-sort": this.sort[0] === key ? (this.sort[1] > 0 ? "ascending" : "descending") : null },
        by ? h("button", { class: "head", onclick: () => this.sortBy(key) }, label, this.sort[0] === key ? (this.sort[1] > 0 ? " ↑" : " ↓") : "") : label)));
    const focused = this.table.contains(document.activeElement);
    fill(this.table, shown.length ? h("table", {}, h("thead", {}, head), h("tbody", {}, shown.map((run, i) => this.row(run, i))))
      : h("p", { class: "soft pad" }, this.runs.length ? "No run matches." : "No runs here yet. Start one: runnel train cartpole"));
    if (focused) this.table.querySelectorAll("tbody tr")[this.at]?.focus({ preventScroll: true });
  }

  row(run, i) {
    const chosen = this.selected.has(run.id);
    const score = run.eval ? h("span", { title: `evaluation of ${run.eval.num} episodes, 95 % interval ${short(run.eval.low)} to ${short(run.eval.high)}` }, short(run.eval.mean))
      : h("span", { class: "soft", title: `training ${run.score_name}` }, short(run.score));
    return h("tr", { tabindex: i === this.at ? "0" : "-1", class: `${chosen ? "chosen" : ""}${i === this.at ? " at" : ""}`, "data-run": run.id,
      onkeydown: (e) => this.key(e, i), onfocus: () => { this.at = i; } },
    h("td", {}, h("input", { type: "checkbox", checked: chosen, "aria-label": `select ${run.name}`, onchange: () => this.select(run) })),
    h("td", { class: "name" }, h("i", { class: "swatch", style: { background: this.paint.get(run.id) ?? "transparent" } }), h("a", { href: `#/run/${encodeURIComponent(run.id)}` }, run.name), run.tags.map((t) => h("span", { class: "tagged" }, `#${t}`)),
      run.problems ? h("span", { class: "warn", title: "some of its files are damaged" }, " ⚠") : null,
      run.collapses.length ? h("span", { class: "collapse bad", title: run.collapses.map((c) => c.text).join("\n\n") }, ` ▼ ${run.collapses.map((c) => c.collapse).join(", ")}`) : null),
    h("td", { class: "status" }, pill(run.status)),
    h("td", { class: "n score" }, score),
    h("td", { class: "curve", title: `${run.score_name}, drawn to one scale for all runs on ${run.subject || run.label}` }, sparkline(run.spark, this.scales.get(taskOf(run)))),
    h("td", { class: "progress" }, h("span", { class: "bar", title: percent(run.progress) }, h("i", { style: { width: `${100 * Math.min(run.progress, 1)}%` } }))),
    h("td", { class: "n steps" }, trained(run)),
    h("td", { class: "n wall_s" }, seconds(run.wall_s)),
    h("td", { class: "created soft" }, run.created.replace("T", " ").slice(0, 16)));
  }

  sortBy(key) {
    this.sort = this.sort[0] === key ? [key, -this.sort[1]] : [key, key === "name" ? 1 : -1];
    kept.set("sort", this.sort);
    this.draw();
  }

  select(run) {
    if (!this.selected.delete(run.id)) this.selected.add(run.id);
    this.keep();
  }

  selectAll(shown, yes) {
    shown.forEach((r) => (yes ? this.selected.add(r.id) : this.selected.delete(r.id)));
    this.keep();
  }

  keep() {
    kept.set("selected", [...this.selected].slice(0, 500));
    this.draw();
  }

  key(event, i) {
    const rows = this.table.querySelectorAll("tbody tr"), go = { ArrowDown: i + 1, j: i + 1, ArrowUp: i - 1, k: i - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (event.target.matches("input, button") && event.key === " ") return;
    if (go !== undefined && rows[go]) {
      event.preventDefault();
      rows[this.at]?.setAttribute("tabindex", "-1");
      this.at = go;
      rows[go].setAttribute("tabindex", "0");
      rows[go].focus();
    } else if (event.key === "Enter" && !event.target.matches("a")) location.hash = `#/run/${encodeURIComponent(rows[i].dataset.run)}`;
    else if (event.key === " " || event.key === "x") { event.preventDefault(); this.select(this.shown()[i]); rows[i]?.focus(); }
  }

  // ---------------------------------------------------------------------------------------------------------- the right side
  drawSide() {
    const chosen = this.drawn();
    const two = this.shown().filter((r) => this.selected.has(r.id));
    const tab = (this.tab === "difference" && two.length !== 2) ? "curves" : this.tab;
    const pick = (t) => { this.tab = t; kept.set("tab", t); this.drawSide(); };
    const count = this.selected.size && two.length ? `${two.length} selected` : `${chosen.length} shown`;
    fill(this.tabs, choice("view", [["curves", "Curves"], ["settings", "Settings"], ["difference", "Difference"]], tab, pick),
      h("span", { class: "soft small" }, tab === this.tab ? count : "select two runs to see their difference"),
      two.length ? h("button", { class: "plain small", onclick: () => { this.selected.clear(); this.keep(); } }, "clear") : null);
    if (tab === "curves") {
      if (!this.side.contains(this.panel.element)) fill(this.side, this.panel.element);
      this.panel.refresh().catch((error) => fill(this.notes, notice([error.message], "bad")));
    } else if (tab === "settings") new Settings(this.side, chosen);
    else new Difference(this.side, two);
  }
}
