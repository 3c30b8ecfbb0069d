// The page of one run: its state, where its time goes, its streams, episodes, completions, settings and events.

import { h, fill, short, whole, compact, seconds, percent, bytes, value, pill, notice, color } from "./dom.js";
import { get, post, on, paced } from "./api.js";
import { Chart, Link } from "./chart.js";
import { Panel } from "./panel.js";
import { Dataflow } from "./dataflow.js";
import { Episodes } from "./episodes.js";
import { Conversations } from "./conversations.js";
import { League } from "./league.js";

const TABS = [["curves", "Curves"], ["time", "Time"], ["streams", "Streams"], ["episodes", "Episodes"], ["conversations", "Conversations"], ["settings", "Settings"], ["events", "Events"], ["league", "League"]];
/** Parts that only some runs have. */
const RARE = new Set(["league"]);

export class Run {
  constructor(root, id, tab) {
    Object.assign(this, { root, id, tab: tab || "curves", part: null, data: null, controls: null, asked: 0, drawn: 0 });
    this.head = h("header", { class: "runhead" });
    this.orders = h("div", {});
    this.tabs = h("nav", { class: "tabs", "aria-label": "parts of the run" });
    this.body = h("div", { class: "runbody" });
    fill(root, this.head, this.orders, this.tabs, this.body);
    const soon = paced(() => this.refresh());
    this.off = on((changed) => { if (!changed || changed.has(this.id)) soon(); });
    this.refresh();
  }

  close() {
    this.off();
    this.part?.close?.();
  }

  parts() { return TABS.filter(([key]) => !RARE.has(key) || this.data?.has[key]); }

  nth(i) { if (this.parts()[i]) location.hash = `#/run/${encodeURIComponent(this.id)}/${this.parts()[i][0]}`; }

  show(tab) {
    this.tab = tab || "curves";
    this.part?.close?.();
    this.part = null;
    this.draw();
  }

  async refresh() {
    const turn = ++this.asked;
    try {
      const data = await get("/api/run", { run: this.id });
      if (turn < this.drawn) return; // a slow answer must not replace a newer one
      Object.assign(this, { data, drawn: turn });
      this.draw();
    } catch (error) {
      fill(this.head, h("h1", {}, this.id), notice([error.message], "bad"), h("p", {}, h("a", { href: "#/" }, "all runs")));
    }
  }

  draw() {
    if (!this.data) return;
    this.drawHead();
    this.drawControl();
    fill(this.tabs, this.parts().map(([key, label]) => h("a", { href: `#/run/${encodeURIComponent(this.id)}/${key}`, "aria-current": key === this.tab ? "page" : null }, label)));
    if (this.part?.update) { this.part.update(this.data); return; }
    this.part = this.make();
    fill(this.body, this.part.element);
    this.part.update(this.data);
  }

  make() {
    switch (this.tab) {
      case "time": return new Time();
      case "streams": return new Streams(this.id);
      case "episodes": return new Episodes(this.id);
      case "conversations": return new Conversations(this.id);
      case "league": return new League(this.id);
      case "settings": return new About();
      case "events": return new Events();
      default: return new Curves(this.id);
    }
  }

  drawHead() {
    const d = this.data;
    const left = typeof d.left_s === "number" ? `, ${seconds(d.left_s)} left` : "";
    const fact = (v, label) => h("div", { class: "fact" }, h("b", {}, v), h("span", {}, label));
    const score = d.eval ? fact(short(d.eval.mean), `evaluation, 95 % ${short(d.eval.low)} to ${short(d.eval.high)}, ${whole(d.eval.num)} episodes`) : fact(short(d.score), `training ${d.score_name}`);
    fill(this.head,
      h("p", { class: "soft small" }, h("a", { href: "#/" }, "← all runs"), d.has.report ? [" · ", h("a", { href: `/report?run=${encodeURIComponent(this.id)}`, target: "_blank", rel: "noopener" }, "report")] : null),
      h("h1", {}, d.name, " ", pill(d.status), d.tags.map((t) => h("span", { class: "tagged" }, `#${t}`))),
      h("span", { class: "bar wide", title: percent(d.progress) }, h("i", { style: { width: `${100 * Math.min(d.progress, 1)}%` } })),
      h("div", { class: "facts" }, score, d.steps ? fact(compact(d.steps), "steps") : null, d.tokens ? fact(compact(d.tokens), "tokens") : null, fact(whole(d.version), "updates"),
        fact(seconds(d.wall_s), `wall time${left}`), d.rate ? fact(compact(Math.round(d.rate)), d.tokens ? "tokens/s" : "steps/s") : null),
      notice(d.failure ? [`It failed: ${d.failure}`] : [], "bad"),
      d.rough ? notice(["This run's file is large and still being read; what is shown is a sample of it."]) : null,
      notice(d.collapses.map((c) => c.text), "bad"), notice(d.problem_texts), notice(d.streams.filter((s) => s.balance !== 0).map((s) => `Stream ${s.name} does not add up: ${whole(s.balance)} rows are unaccounted for.`), "bad"));
  }

  /** Only when it comes, goes or knows other settings: a click on an element that is put in anew at that moment would be lost. */
  drawControl() {
    const { control, live } = this.data.has, now = control ? live.join() : null;
    if (now === this.controls) return;
    this.controls = now;
    fill(this.orders, control ? this.control() : null);
  }

  control() {
    const said = h("span", { class: "small", role: "status" });
    const token = this.token ??= h("input", { type: "password", placeholder: "token it printed", "aria-label": "control token", autocomplete: "off", size: 16 });
    const told = { stop: " it ends at its next version", checkpoint: " it saves at its next version", set: " asked; the messages say when it counts" };
    const order = async (op, more = {}) => {
      try {
        await post("/api/order", { run: this.id, op, token: token.value, ...more });
        fill(said, told[op]);
      } catch (error) { fill(said, ` ${error.message}`); }
    };
    const name = h("select", { "aria-label": "live setting" }, this.data.has.live.map((one) => h("option", {}, one)));
    const value = h("input", { placeholder: "new value", "aria-label": "new value", size: 12 });
    const read = (text) => { try { return JSON.parse(text); } catch { return text === "none" ? null : text; } };
    const set = () => (value.value ? order("set", { settings: { [name.value]: read(value.value) } }) : fill(said, " give a value"));
    return h("div", { class: "control" }, token, h("button", { onclick: () => order("checkpoint") }, "checkpoint now"),
      h("button", { class: "danger", onclick: () => order("stop") }, "stop"),
      this.data.has.live.length ? [name, value, h("button", { onclick: set }, "set")] : null, said);
  }
}

class Curves {
  constructor(id) {
    this.panel = new Panel({ runs: () => [{ id, label: id, color: color(0), groupColor: color(0), groupLabel: "" }], grouping: false });
    this.panel.load = bySeries(this.panel, id);
    this.element = this.panel.element;
  }

  update() { this.panel.refresh(); }
  close() { this.panel.close(); }
}

/** With one run, a line has the name of its metric, and evaluations have their interval as a band. */
function bySeries(panel, id) {
  return async (metrics, span) => {
    const { smoothing } = panel.view, interval = metrics[0] === "eval/mean";
    const asked = interval ? ["eval/mean", "eval/low", "eval/high"] : metrics;
    const found = await post("/api/curves", { runs: [id], metrics: asked, axis: panel.axis(), smoothing: interval ? 0 : smoothing, span });
    const of = new Map(found.series.map((s) => [s.metric, s.y]));
    const lines = metrics.filter((m) => of.has(m)).map((m) => ({ label: interval ? "evaluation, band: 95 % interval over episodes" : m, color: color(0), y: of.get(m), marks: m.startsWith("eval/"), low: interval ? of.get("eval/low") : null, high: interval ? of.get("eval/high") : null }));
    return { x: found.x, axis: found.axis, lines };
  };
}

/** A chart of several metrics of one run. */
function together(id, title, names, link, { axis = "wall_s", unit } = {}) {
  const chart = new Chart({ title, link, unit, legend: true, load: async (span) => {
    const metrics = names().filter(Boolean);
    const found = await post("/api/curves", { runs: [id], metrics: metrics.map(([m]) => m), axis, span });
    const of = new Map(metrics);
    return { x: found.x, axis, lines: found.series.map((s, i) => ({ label: of.get(s.metric), color: color(i), y: s.y })) };
  } });
  return chart;
}

class Time {
  constructor() {
    this.recent = false;
    this.element = h("div", {});
  }

  update(d) {
    this.data = d;
    const total = (w) => w.stages.reduce((sum, s) => sum + (this.recent ? s.recent : s.seconds), 0);
    const longest = Math.max(...d.stages.map(total), 1e-9), waits = (w) => (this.recent ? w.idle_recent : w.idle);
    const names = [...new Set(d.stages.flatMap((w) => w.stages.map((s) => s.stage)))];
    const row = (w) => h("div", { class: "worker" },
      h("div", {}, h("b", {}, w.worker), typeof waits(w) === "number" ? h("span", { class: "soft small" }, ` waits ${percent(waits(w))}`) : null),
      h("div", { class: "stack" }, sorted(w.stages, this.recent).map((s) => h("i", { title: `${s.stage} ${seconds(s.spent)}`, style: { background: `var(--c${names.indexOf(s.stage) % 10})`, width: `${(100 * s.spent) / longest}%` } }))),
      h("div", { class: "keys" }, sorted(w.stages, this.recent).map((s) => h("span", {}, h("i", { style: { background: `var(--c${names.indexOf(s.stage) % 10})` } }), `${s.stage} ${percent(s.spent / Math.max(total(w), 1e-12))} · ${seconds(s.spent)}`))));
    const ranks = Object.entries(d.ranks);
    fill(this.element, h("h2", {}, "Where the time goes"), h("p", {}, h("label", {}, h("input", { type: "checkbox", checked: this.recent, onchange: (e) => { this.recent = e.target.checked; this.update(this.data); } }), " last minute only")),
      d.stages.length ? d.stages.map(row) : h("p", { class: "soft" }, "Nothing measured yet."),
      ranks.length ? [h("h3", {}, "Ranks of the trainer"), h("dl", {}, ranks.map(([k, v]) => [h("dt", {}, k), h("dd", {}, value(v))]))] : null);
  }
}

const sorted = (stages, recent) => stages.map((s) => ({ ...s, spent: recent ? s.recent : s.seconds })).sort((a, b) => b.spent - a.spent);

const ACCOUNT = ["stream", "dispatched", "= consumed", "+ dropped", "+ cancelled", "+ in flight", "in queue", "adds up"];

class Streams {
  constructor(id) {
    this.graph = new Dataflow();
    const link = new Link("run");
    const of = (end) => () => this.data.metrics.filter((m) => m.startsWith("streams/") && end(m)).map((m) => [m, m.slice("streams/".length)]);
    const has = (list, wanted = () => true) => () => list.filter(([m]) => this.data.metrics.includes(m) && wanted(m));
    this.charts = {
      depth: together(id, "Samples in queue and in flight", of((m) => /\/(queued|in_flight)$/.test(m)), link, { unit: whole }),
      staleness: together(id, "Staleness (versions)", has([["staleness/mean", "mean"], ["staleness/max", "largest"], ["staleness/in_flight", "of it in flight"], ["staleness/in_queue", "of it in queue"]]), link),
      drops: together(id, "Dropped and cancelled, by reason", of((m) => /\/(dropped|cancelled)\//.test(m)), link, { unit: whole }),
      rate: together(id, "Steps and tokens per second", has([["time/steps_per_s", "steps/s"], ["time/tokens_per_s", "tokens/s"]], (m) => (m === "time/tokens_per_s" ? this.data.tokens : this.data.steps)), link),
      cores: together(id, "Cores in use", has([["system/cores", "this run"], ["system/machine_cores", "the machine"]]), link),
      memory: together(id, "Memory, GB", has([["system/memory_gb", "this run"], ["system/machine_memory_gb", "the machine"]]), link),
      gpu: together(id, "GPUs", () => this.data.metrics.filter((m) => m.startsWith("system/gpu")).map((m) => [m, m.slice("system/".length)]), link),
    };
    this.account = h("div", { class: "scroll accounts" });
    this.grid = h("div", { class: "grid" });
    this.load = h("p", { class: "soft" });
    this.element = h("div", {}, h("h2", {}, "Workers and streams"), this.graph.element, h("h2", {}, "Accounts"), this.account, h("h2", {}, "Over time"), this.load, this.grid);
  }

  update(d) {
    this.data = d;
    this.graph.update(d);
    const reasons = (r) => [whole(Object.values(r).reduce((a, b) => a + b, 0)), Object.entries(r).map(([k, v]) => h("div", { class: "soft small" }, `${k} ${whole(v)}`))];
    fill(this.account, d.streams.length ? h("table", {}, h("thead", {}, h("tr", {}, ACCOUNT.map((t, i) => h("th", { class: i ? "n" : "" }, t)))),
      h("tbody", {}, d.streams.map((s) => h("tr", {}, h("td", { "data-label": ACCOUNT[0] }, s.name), [whole(s.dispatched), whole(s.consumed), reasons(s.dropped), reasons(s.cancelled), whole(s.in_flight), whole(s.queued)].map((c, i) => h("td", { class: "n", "data-label": ACCOUNT[i + 1] }, c)),
        h("td", { class: `n ${s.balance ? "bad" : "good"}`, "data-label": ACCOUNT[7] }, s.balance ? `✗ ${whole(s.balance)} missing` : "✓ yes"))))) : h("p", { class: "soft" }, "No stream has been counted yet."));
    const s = d.system;
    fill(this.load, s.num_cores ? `${d.status === "running" ? "Now" : "When it was last looked at"}: ${short(s.cores)} of ${s.num_cores} cores, ${short(s.memory_gb)} of ${short(s.total_memory_gb)} GB.` : "");
    const shown = Object.entries(this.charts).filter(([name]) => name !== "gpu" || d.metrics.some((m) => m.startsWith("system/gpu")))
      .filter(([name]) => name !== "drops" || d.metrics.some((m) => /\/(dropped|cancelled)\//.test(m))).filter(([name]) => !["cores", "memory"].includes(name) || d.metrics.includes("system/cores"));
    if (this.grid.childElementCount !== shown.length) fill(this.grid, shown.map(([, chart]) => chart.element));
    shown.forEach(([, chart]) => chart.refresh());
  }

  close() { Object.values(this.charts).forEach((chart) => chart.close()); }
}

class About {
  constructor() { this.element = h("div", {}); }

  update(d) {
    if (this.drawn === JSON.stringify(d.config)) return;
    this.drawn = JSON.stringify(d.config);
    const git = d.info.git?.commit ? `${d.info.git.commit}${d.info.git.dirty ? " with uncommitted changes" : ""}` : "not in a repository";
    const items = { folder: d.path, seed: d.info.seed, started: d.info.created, git, python: d.info.python, platform: d.info.platform, versions: Object.entries(d.info.versions ?? {}).map(([k, v]) => `${k} ${v}`).join(", ") };
    fill(this.element, h("h2", {}, "How to run it again"), h("pre", { class: "box" }, d.info.command ?? "–"),
      h("dl", {}, Object.entries(items).filter(([, v]) => v !== undefined && v !== "").map(([k, v]) => [h("dt", {}, k), h("dd", {}, value(v))])),
      h("h2", {}, "Settings"), tree(d.config),
      d.checkpoints.length ? [h("h2", {}, "Checkpoints"), h("dl", {}, d.checkpoints.map((c) => [h("dt", {}, c.name), h("dd", {}, bytes(c.bytes))]))] : null);
  }
}

function tree(config) {
  const nested = (v) => v && typeof v === "object" && !Array.isArray(v) && Object.keys(v).length;
  const entries = Object.entries(config);
  return [h("dl", {}, entries.filter(([, v]) => !nested(v)).map(([k, v]) => [h("dt", {}, k), h("dd", {}, value(v))])),
    entries.filter(([, v]) => nested(v)).map(([k, v]) => h("details", { open: true }, h("summary", {}, k), tree(v)))];
}

class Events {
  constructor() {
    this.level = "all";
    this.element = h("div", {});
  }

  update(d) {
    this.data = d;
    const kinds = ["all", ...new Set(d.events.map((e) => e.what ?? e.level))];
    const rows = d.events.filter((e) => this.level === "all" || (e.what ?? e.level) === this.level).reverse();
    fill(this.element, h("h2", {}, "Events"), h("p", { class: "chips" }, kinds.map((k) => h("button", { class: "chip", "aria-pressed": String(k === this.level), onclick: () => { this.level = k; this.update(this.data); } }, k))),
      rows.length ? h("div", { class: "scroll" }, h("table", { id: "events" }, h("tbody", {}, rows.map((e) => h("tr", {}, h("td", { class: "n soft" }, seconds(e.time?.wall_s)),
        h("td", { class: { warning: "warn", error: "bad" }[e.level] ?? "soft" }, e.what ?? e.level), h("td", {}, e.text)))))) : h("p", { class: "soft" }, "No events yet."));
  }
}
