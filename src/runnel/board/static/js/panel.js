// The curves of some runs, in sections that open and close; with controls for the axis, smoothing and the filter of metrics.

import { h, fill, choice, color, middle } from "./dom.js";
import { post, kept } from "./api.js";
import { Chart, Link, AXES } from "./chart.js";

const LEADING = ["return", "reward", "eval/mean", "eval/pass@1", "episode_length"];
const SECTIONS = [
  ["Score", (n) => LEADING.includes(n) || n.startsWith("eval/")],
  ["Losses", (n) => n.startsWith("loss")],
  ["Learning", (n) => !n.includes("/") || /^(kl|entropy|ppo|lr|advantage|grad|ratio|ess)/.test(n)],
  ["Conversations", (n) => /^chat\/|^time\/conversations\//.test(n)],
  ["Staleness and mismatch", (n) => /^(staleness|mismatch|version_span)/.test(n)],
  ["Rewards and tokens", (n) => /^(reward|rewards|tokens|length|group)/.test(n)],
  ["Speed", (n) => /^time\/[^/]+$/.test(n)],
  ["System", (n) => n.startsWith("system/")],
  ["Streams", (n) => n.startsWith("streams/")],
  ["Time by worker", (n) => n.startsWith("time/")],
  ["More", () => true],
];
const OPEN = new Set(["Score", "Losses", "Learning"]);
const NUM_NAMED = 10;
const HIDDEN = new Set(["eval/low", "eval/high", "time/wall_s", "optimiser_steps"]);

export class Panel {
  /** `runs()` gives the runs to draw: [{id, label, group, color, groupColor, groupLabel}]; `changed` hears of another grouping. */
  constructor({ runs, grouping = true, changed = () => {} }) {
    Object.assign(this, { runs, grouping, changed, charts: new Map(), link: new Link("curves"), opened: new Set(OPEN), names: [], filter: "" });
    this.view = { axis: kept.get("axis", "steps"), smoothing: kept.get("smoothing", 0), log: kept.get("log", false), group: grouping && kept.get("group", true) };
    this.controls = h("div", { class: "controls" });
    this.body = h("div", { class: "sections" });
    this.legend = h("div", { class: "legend" });
    this.element = h("div", { class: "panel" }, this.controls, this.legend, this.body);
    this.axes = ["steps"];
    this.drawControls();
  }

  set(name, v) {
    this.view[name] = v;
    kept.set(name, v);
    this.drawControls();
    if (name === "group") { this.changed(); this.drawLegend(); }
    if (name === "log") this.charts.forEach((chart) => chart.draw());
    else if (name === "axis") this.link.zoom(null);
    else this.charts.forEach((chart) => chart.refresh());
  }

  drawControls() {
    const { view } = this;
    const axes = this.axes.includes(view.axis) ? this.axes : [...this.axes];
    if (this.controls.contains(document.activeElement) && document.activeElement.matches("input")) return;
    fill(this.controls,
      h("label", {}, "x ", h("select", { id: "axis", onchange: (e) => this.set("axis", e.target.value) },
        axes.map((a) => h("option", { value: a, selected: a === this.axis() }, AXES[a])))),
      h("label", {}, "smoothing ", h("input", { id: "smoothing", type: "range", min: 0, max: 0.99, step: 0.01, value: view.smoothing,
        oninput: (e) => this.set("smoothing", Number(e.target.value)) })),
      h("label", {}, h("input", { id: "log", type: "checkbox", checked: view.log, onchange: (e) => this.set("log", e.target.checked) }), " log scale"),
      this.grouping ? choice("lines", [[true, "mean over seeds"], [false, "each run"]], view.group, (v) => this.set("group", v)) : null,
      h("input", { id: "metric-filter", type: "search", placeholder: "filter metrics", "aria-label": "filter metrics", value: this.filter,
        oninput: (e) => { this.filter = e.target.value; this.drawSections(); } }));
  }

  axis() {
    return this.axes.includes(this.view.axis) ? this.view.axis : this.axes[0] ?? "version";
  }

  /** The runs or their metrics have changed: ask for the names of metrics again. */
  async refresh() {
    const ids = this.runs().map((run) => run.id);
    const found = await post("/api/metrics", { runs: ids });
    this.axes = found.axes.length ? found.axes : ["version"];
    this.names = found.metrics.filter((n) => !HIDDEN.has(n));
    this.drawControls();
    this.drawLegend();
    this.drawSections();
    this.charts.forEach((chart) => chart.refresh());
  }

  drawLegend() {
    if (!this.grouping) return;
    const { group } = this.view, seen = new Map();
    for (const run of this.runs()) {
      const key = group ? run.group : run.id, found = seen.get(key);
      const entry = found ?? { label: group ? run.groupLabel : run.label, color: group ? run.groupColor : run.color, num: 0, seeds: new Set() };
      entry.num += 1;
      entry.seeds.add(run.seed ?? run.id);
      seen.set(key, entry);
    }
    const all = [...seen.values()], several = all.some((e) => e.seeds.size > 1);
    const left = (e) => (e.num > e.seeds.size ? `, ${e.num - e.seeds.size} older of the same` : "");
    const name = (e) => (!group || e.num === 1 ? e.label : `${middle(e.label)} (${e.seeds.size} ${e.seeds.size > 1 ? "seeds" : "seed"}${left(e)})`);
    fill(this.legend, all.slice(0, NUM_NAMED).map((e) => h("span", { title: e.label }, h("i", { class: "swatch", style: { background: e.color } }), name(e))),
      all.length > NUM_NAMED ? h("span", { class: "soft" }, `and ${all.length - NUM_NAMED} more`) : null,
      group && several ? h("span", { class: "soft caption" }, "bands: 95 % interval of the mean over seeds (Student's t), cut to the lines; of two seeds each run is a thin line") : null);
  }

  drawSections() {
    const words = this.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const left = new Set(this.names.filter((n) => words.every((w) => n.toLowerCase().includes(w))));
    const wanted = [];
    for (const [title, belongs] of SECTIONS) {
      const names = [...left].filter(belongs);
      names.forEach((n) => left.delete(n));
      if (names.length) wanted.push([title, title === "Score" ? names.sort(byLead) : names]);
    }
    const key = JSON.stringify([wanted, [...this.opened], words]);
    if (key === this.drawn) return;
    this.drawn = key;
    const shown = new Set();
    fill(this.body, wanted.map(([title, names]) => this.section(title, names, words.length > 0, shown)),
      wanted.length ? null : h("p", { class: "soft pad" }, this.names.length ? "No metric matches the filter." : "No metrics yet."));
    for (const [name, chart] of this.charts) if (!shown.has(name)) { chart.close(); this.charts.delete(name); }
  }

  section(title, names, forced, shown) {
    const open = forced || this.opened.has(title);
    const grid = h("div", { class: "grid" });
    if (open) names.forEach((name) => { shown.add(name); grid.append(this.chart(name).element); });
    return h("details", { class: "section", open, ontoggle: (e) => {
      if (e.target.open === open || forced) return;
      if (e.target.open) this.opened.add(title); else this.opened.delete(title);
      this.drawSections();
    } }, h("summary", {}, title, h("span", { class: "soft small" }, ` ${names.length}`)), grid);
  }

  chart(name) {
    if (!this.charts.has(name)) {
      this.charts.set(name, new Chart({ title: name, link: this.link, log: () => this.view.log, load: (span) => this.load([name], span) }));
    }
    return this.charts.get(name);
  }

  async load(metrics, span) {
    const runs = this.runs(), of = new Map(runs.map((run) => [run.id, run]));
    const { smoothing, group } = this.view;
    const found = await post("/api/curves", { runs: runs.map((r) => r.id), metrics, axis: this.axis(), smoothing, group, span });
    const many = found.series.length > 30;
    return { x: found.x, axis: found.axis, lines: found.series.map((s) => {
      const run = of.get(s.run) ?? { label: s.run, color: color(0), groupColor: color(0), groupLabel: s.run };
      const label = group ? (s.num > 1 ? `${middle(run.groupLabel)}, mean of ${s.num}${s.caution ? ` (${s.caution})` : ""}` : run.groupLabel) : run.label;
      const band = s.members ? { low: null, high: null } : {}; // an interval of two seeds says nothing: each run is drawn instead
      return { ...s, ...band, label, color: group ? run.groupColor : run.color, dash: group ? run.groupDash : run.dash, faint: many, marks: s.metric.startsWith("eval/") && !many };
    }) };
  }

  close() {
    this.charts.forEach((chart) => chart.close());
  }
}

function byLead(a, b) {
  const place = (n) => (LEADING.includes(n) ? LEADING.indexOf(n) : 99);
  return place(a) - place(b);
}
