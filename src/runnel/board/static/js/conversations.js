// What a language model wrote: a group's completions side by side, tokens coloured by what the learner saw; conversations turn by turn.

import { h, fill, short, whole, counted, notice, choice } from "./dom.js";
import { get, kept } from "./api.js";
import { trainedTalk, playedTalk, said, countStates, endOf, agentOf } from "./talk.js";

const PAINT = [["none", "plain"], ["advantages", "advantage"], ["logprob", "log-probability"], ["mismatch", "mismatch"], ["versions", "version"], ["entropy", "entropy"]];
const EXPLAIN = {
  none: "", advantages: "green raises the token's probability, red lowers it", logprob: "the darker, the less likely the engine thought the token",
  mismatch: "learner minus engine: blue where the learner thinks the token likelier, orange where less", versions: "one colour a policy version: a completion that spans an update has two",
  entropy: "the darker, the less certain the policy was",
};

const VIEWS = { groups: "as trained", conversations: "as played" };

export class Conversations {
  constructor(id) {
    Object.assign(this, { id, paint: kept.get("paint", "advantages"), view: null, number: null, drawn: "" });
    this.notes = h("div", {});
    this.views = h("p", {});
    this.list = h("div", { class: "grouplist", role: "listbox", "aria-label": "groups", onkeydown: (e) => this.step(e) });
    this.stage = h("div", { class: "group" });
    this.element = h("div", {}, this.notes, this.views, h("div", { class: "talks" }, this.list, this.stage));
  }

  async update(d) {
    const there = Object.keys(VIEWS).filter((name) => d.has[name]);
    if (!there.length) {
      fill(this.notes, h("p", { class: "soft" }, "No groups of completions were recorded. This run trains no language model, or it was started with ", h("code", {}, "--record.groups-every 0"), "."));
      return;
    }
    if (!there.includes(this.view)) this.view = there[0];
    fill(this.views, there.length > 1 ? choice("what to show", there.map((name) => [name, VIEWS[name]]), this.view, (name) => this.pick(name, d)) : null);
    const { view } = this;
    try {
      const found = await get(`/api/${view}`, { run: this.id });
      if (view !== this.view) return; // another view was chosen meanwhile
      fill(this.notes, notice(found.num_problems ? [`${counted(found.num_problems, "line")} of ${view}.jsonl cannot be read; skipped.`] : []));
      this.drawList(found[view]);
    } catch (error) {
      fill(this.notes, notice([error.message], "bad"));
    }
  }

  pick(view, d) {
    Object.assign(this, { view, number: null, drawn: "", shown: null });
    fill(this.stage);
    this.update(d);
  }

  drawList(found) {
    const key = found.map((g) => g.number).join();
    if (key === this.drawn) return;
    this.drawn = key;
    fill(this.list, found.map((g) => h("button", { class: "talk", role: "option", "data-number": g.number, "aria-selected": String(g.number === this.number), onclick: () => this.open(g.number) },
      h("b", {}, `version ${whole(g.version)}`), this.view === "groups" ? groupFacts(g) : talkFacts(g), h("span", { class: "cut" }, g.prompt.trim().split("\n").at(-1)))));
    if (found.length && this.number === null) this.open(found[0].number);
  }

  /** Arrow keys move through the list. */
  step(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key], all = [...this.list.querySelectorAll(".talk")];
    const next = all[all.indexOf(event.target) + by];
    if (!by || !next) return;
    event.preventDefault();
    next.focus();
    next.click();
  }

  async open(number) {
    const { view } = this;
    this.number = number;
    this.list.querySelectorAll(".talk").forEach((b) => b.setAttribute("aria-selected", String(Number(b.dataset.number) === number)));
    try {
      const found = await get(`/api/${view}`, { run: this.id, number });
      if (view !== this.view || number !== this.number) return; // a slow answer must not replace what was chosen later
      this.group = found;
      if (view === "groups") this.draw(); else fill(this.stage, playedTalk(found));
    } catch (error) {
      fill(this.stage, notice([error.message], "bad"));
    }
  }

  draw() {
    const g = this.group, rows = g.rows ?? [];
    const has = PAINT.filter(([k]) => k === "none" || rows.some((r) => Array.isArray(r[k]) && r[k].some((v) => typeof v === "number")));
    const paint = has.some(([k]) => k === this.paint) ? this.paint : "none";
    const scale = scaleOf(paint, rows), states = countStates(rows), talks = rows.some((r) => Array.isArray(r.turns) && Array.isArray(r.messages));
    const before = this.shown === g.number ? [...this.stage.querySelectorAll(".talkrow")].map((box) => box.open) : [true]; // another colour keeps what is open
    this.shown = g.number;
    fill(this.stage,
      h("p", { class: "soft small" }, `trained at version ${whole(g.version)}${g.source ? ` · ${g.source}` : ""}${g.task_id >= 0 ? ` · task ${g.task_id}` : ""}${agentOf(g)}`),
      h("h3", {}, "Prompt"), prompt(g, talks),
      h("div", { class: "controls" }, "colour by ", choice("colour", has, paint, (k) => { this.paint = k; kept.set("paint", k); this.draw(); }), h("span", { class: "soft small" }, EXPLAIN[paint], talks ? h("span", {}, `${EXPLAIN[paint] ? "; " : ""}faint: read, not trained on`) : null)),
      h("div", { class: talks ? "completions long" : "completions" }, rows.map((row, i) => (talks ? trainedTalk(row, i, { open: before[i], states, weights: g.weights, span: (j) => span(row.tokens[j], row, j, paint, scale) }) : completion(row, i, paint, scale)))));
  }
}

function groupFacts(g) {
  return [h("span", { class: "soft small" }, ` ${g.agent || g.source}`), h("span", { class: "dots" }, g.rewards.slice(0, 16).map((r) => h("i", { title: short(r), style: { background: shade(r, g.rewards) } })))];
}

function talkFacts(t) {
  return h("span", { class: "soft small" }, `${t.agent ? ` ${t.agent} ·` : ""} return ${short(t.return)} · ${counted(t.turns, "turn")}${t.reason && t.reason !== "terminated" ? ` · ${endOf(t.reason)}` : ""}`);
}

function prompt(g, talks) {
  if (talks && Array.isArray(g.messages)) return h("div", {}, g.messages.map((m) => said(String(m.role ?? ""), "", String(m.content ?? ""), h("pre", {}, String(m.content ?? "")))));
  if (Array.isArray(g.messages) && g.messages.length) {
    return h("div", {}, g.messages.map((m) => h("div", { class: `said ${m.role ?? ""}` }, h("span", { class: "soft small" }, m.role ?? ""), h("pre", {}, typeof m.content === "string" ? m.content : JSON.stringify(m.content)))));
  }
  return h("pre", { class: "box" }, g.prompt ?? "");
}

function completion(row, i, paint, scale) {
  const parts = Object.entries(row.rewards ?? {});
  return h("article", { class: "completion" },
    h("header", {}, h("b", {}, `#${i + 1}`), h("span", { class: "n" }, `reward ${short(row.reward)}`), typeof row.advantage === "number" ? h("span", { class: row.advantage >= 0 ? "good" : "bad" }, `advantage ${short(row.advantage)}`) : null,
      row.truncated ? h("span", { class: "warn" }, "cut at its limit") : null),
    parts.length ? h("dl", { class: "parts" }, parts.map(([k, v]) => [h("dt", {}, k), h("dd", {}, short(v))])) : null,
    row.turns?.some((t) => Object.keys(t.rewards).length) ? h("p", { class: "soft small" }, row.turns.map((t, k) => `turn ${k + 1}: ${Object.entries(t.rewards).map(([name, v]) => `${name} ${short(v)}`).join(", ")}`).join(" · ")) : null,
    h("pre", { class: "tokens" }, row.tokens?.length ? row.tokens.map((t, j) => [row.row_starts?.includes(j) ? h("span", { class: "new-row", title: "a new row of the same trajectory: the model read what follows as a prompt of its own" }) : null, span(t, row, j, paint, scale)]) : row.completion));
}

function span(text, row, j, paint, scale) {
  const facts = PAINT.slice(1).filter(([k]) => typeof row[k]?.[j] === "number").map(([k, label]) => `${label} ${short(row[k][j])}`);
  if (row.mask?.[j] === 0) facts.push("not trained on");
  const background = paint === "none" ? "" : scale(row[paint]?.[j]);
  return h("span", { class: `tok${row.mask?.[j] === 0 ? " masked" : ""}`, title: facts.join("\n"), style: background ? { background } : {} }, text);
}

/** A colour for each value of what is painted. */
function scaleOf(paint, rows) {
  const values = rows.flatMap((r) => r[paint] ?? []).filter((v) => typeof v === "number");
  const most = Math.max(...values.map(Math.abs), 1e-9);
  const mix = (name, share) => `color-mix(in srgb, var(${name}) ${Math.round(70 * Math.min(share, 1))}%, transparent)`;
  if (paint === "advantages") return (v) => (typeof v === "number" && v !== 0 ? mix(v > 0 ? "--good" : "--bad", Math.abs(v) / most) : "");
  if (paint === "mismatch") return (v) => (typeof v === "number" ? mix(v > 0 ? "--c0" : "--c1", Math.abs(v) / most) : "");
  if (paint === "logprob") return (v) => (typeof v === "number" ? mix("--c1", -v / 8) : "");
  if (paint === "entropy") return (v) => (typeof v === "number" ? mix("--c3", v / most) : "");
  const found = [...new Set(values)].sort((a, b) => a - b);
  return (v) => (typeof v === "number" ? `color-mix(in srgb, var(--c${found.indexOf(v) % 10}) 38%, transparent)` : "");
}

function shade(r, all) {
  const low = Math.min(...all), high = Math.max(...all);
  return `color-mix(in srgb, var(--good) ${Math.round(100 * (high > low ? (r - low) / (high - low) : r > 0 ? 1 : 0))}%, var(--bad))`;
}
