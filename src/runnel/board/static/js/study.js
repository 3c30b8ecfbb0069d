// A study of `runnel tune`: trials, how settings relate to scores, and which of them matter.

import { h, fill, short, seconds, value, percent, notice, pill } from "./dom.js";
import { get, on, paced } from "./api.js";

/** Seeds below which no interval is shown. */
const FEWEST = 3;

export class Study {
  constructor(root, id) {
    Object.assign(this, { root, id });
    const soon = paced(() => this.refresh(), 1500);
    this.off = on(() => soon());
    this.refresh();
  }

  close() { this.off(); }

  async refresh() {
    try {
      const found = await get("/api/study", { study: this.id });
      if (JSON.stringify(found) === this.drawn) return;
      this.drawn = JSON.stringify(found);
      this.draw(found);
    } catch (error) {
      fill(this.root, h("p", {}, h("a", { href: "#/" }, "← all runs")), notice([error.message], "bad"));
    }
  }

  draw(s) {
    if (s.error) { fill(this.root, h("p", {}, h("a", { href: "#/" }, "← all runs")), notice([s.error], "bad")); return; }
    const sign = s.direction === "minimize" ? -1 : 1, names = Object.keys(s.params ?? {});
    const scored = s.trials.filter((t) => typeof t.value === "number").sort((a, b) => sign * (b.value - a.value));
    const rest = s.trials.filter((t) => typeof t.value !== "number");
    const count = (state) => s.trials.filter((t) => t.state === state).length;
    const best = s.trials.find((t) => t.number === s.best);
    fill(this.root, h("header", { class: "runhead" }, h("p", { class: "soft small" }, h("a", { href: "#/" }, "← all runs")), h("h1", {}, s.name, " ", pill(s.status ?? "")),
      h("p", { class: "soft" }, `${s.recipe ?? ""} ${s.subject ?? ""} · ${s.algorithm ?? ""}${s.pruner ? `, pruner ${s.pruner}` : ""} · ${s.direction} ${s.metric} · ${count("complete")} complete, ${count("pruned")} pruned, ${count("running")} running, ${count("failed")} failed`),
      best ? h("p", { id: "winner" }, h("b", {}, `trial ${best.number}: selected ${short(best.value)} → test ${tested(s)}`), h("span", { class: "soft" }, s.test ? " the first number was used to select the trial, so it is optimistic; the second comes from seeds that were not used to select" : " chosen among many on tuning seeds, so it is optimistic: --test-seeds 5 measures it on fresh ones")) : null),
    h("h2", {}, "Settings and scores"), scored.length ? parallel(s, names, scored, sign) : h("p", { class: "soft" }, "No trial has a score yet."),
    s.importance ? [h("h2", {}, "Which settings matter"), h("div", { id: "importance" }, Object.entries(s.importance).sort((a, b) => b[1] - a[1]).map(([n, v]) => h("div", { class: "matter" }, h("span", {}, n), h("span", { class: "bar" }, h("i", { style: { width: `${100 * v}%` } })), h("span", { class: "n" }, percent(v)))))] : null,
    s.lineage?.length ? [h("h2", {}, "Copies"), h("div", { class: "scroll" }, h("table", { id: "lineage" }, h("thead", {}, h("tr", {}, ["at", "member", "copied", "settings"].map((t) => h("th", {}, t)))),
      h("tbody", {}, s.lineage.map((c) => h("tr", {}, h("td", {}, value(c.step)), h("td", {}, value(c.member)), h("td", {}, value(c.parent)), h("td", {}, Object.keys(c.after ?? {}).map((k) => `${k} ${value(c.before?.[k])} → ${value(c.after[k])}`).join(", ")))))))] : null,
    h("h2", {}, "Trials"), h("div", { class: "scroll" }, h("table", { id: "trials" }, h("thead", {}, h("tr", {}, ["trial", "state", "score", ...names, "time", ""].map((t) => h("th", { class: t === "score" ? "n" : "" }, t)))),
      h("tbody", {}, [...scored, ...rest].map((t) => h("tr", { class: t.number === s.best ? "chosen" : "" }, h("td", {}, t.number), h("td", {}, pill(t.state)), h("td", { class: "n" }, short(t.value)),
        names.map((n) => h("td", { class: "setting" }, value(t.params?.[n]))), h("td", {}, seconds(t.seconds)), h("td", {}, runLink(this.id, t), t.error ? h("span", { class: "bad small" }, t.error) : null)))))));
  }
}

/** What the winner reached on fresh seeds. */
function tested(s) {
  if (!s.test || !Array.isArray(s.test.values)) return "not measured";
  const num = s.test.values.length, interval = num >= FEWEST ? `, 95 % interval ${short(s.test.low)} to ${short(s.test.high)}` : "";
  return `${short(s.test.mean)} (${num} seed${num > 1 ? "s" : ""}${interval})`;
}

function runLink(study, t) {
  const run = t.run ?? t.runs?.[0];
  return run ? h("a", { href: `#/run/${encodeURIComponent(study === "." ? run : `${study}/${run}`)}` }, "run") : null;
}

/** Parallel coordinates: a line a trial, through its value on each axis; the best are drawn strongest. */
function parallel(s, names, trials, sign) {
  const axes = [...names.map((n) => axis(n, trials.map((t) => t.params?.[n]), s.params[n])), axis(s.metric, trials.map((t) => t.value), { kind: "float" })];
  const width = Math.max(560, Math.min(1200, 300 * axes.length)), height = 260, left = 50, step = (width - 2 * left) / Math.max(axes.length - 1, 1);
  const y = (a, v) => 30 + (height - 70) * (1 - a.place(v));
  const order = [...trials].sort((a, b) => sign * (a.value - b.value));
  const lines = order.map((t, i) => {
    const points = axes.map((a, j) => `${left + j * step},${y(a, j < names.length ? t.params?.[names[j]] : t.value).toFixed(1)}`);
    const share = order.length > 1 ? i / (order.length - 1) : 1;
    return h("polyline", { points: points.join(" "), class: "trial", style: { stroke: `color-mix(in srgb, var(--c1) ${Math.round(100 * share)}%, var(--line))`, "stroke-width": share > 0.9 ? "2.2" : "1.2" } });
  });
  return h("div", { class: "scroll" }, h("svg", { id: "parallel", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `parallel coordinates of ${trials.length} trials` }, lines,
    axes.map((a, j) => h("g", { class: "axis" }, h("line", { x1: left + j * step, x2: left + j * step, y1: 30, y2: height - 40 }), h("text", { x: left + j * step, y: 18 }, a.name),
      h("text", { class: "soft", x: left + j * step, y: height - 24 }, a.low), h("text", { class: "soft", x: left + j * step, y: height - 10 }, a.high === a.low ? "" : `to ${a.high}`)))));
}

function axis(name, values, spec) {
  const numbers = values.filter((v) => typeof v === "number");
  if (spec?.kind === "choice" || numbers.length !== values.filter((v) => v !== undefined && v !== null).length) {
    const found = [...new Set([...(spec?.choices ?? []), ...values].map(value))]; // in the order of the space
    return { name, place: (v) => (found.length > 1 ? found.indexOf(value(v)) / (found.length - 1) : 0.5), low: found[0] ?? "", high: found.at(-1) ?? "" };
  }
  const warp = spec?.log ? Math.log : (v) => v, low = Math.min(...numbers), high = Math.max(...numbers);
  return { name, place: (v) => (high > low ? (warp(v) - warp(low)) / (warp(high) - warp(low)) : 0.5), low: short(low), high: short(high) };
}
