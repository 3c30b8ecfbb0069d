// Turns of a conversation as pictures: what each earned and how long it took as small bars, and rows as a tree.

import { h, short, seconds, whole } from "./dom.js";

const isNumber = (v) => typeof v === "number" && Number.isFinite(v);
const WIDE = 9, HIGH = 26;

/** What a channel counts in the reward: one of weight -0.1 is a cost. */
export const weightOf = (weights, name) => (isNumber(weights?.[name]) ? weights[name] : 1);

/** A strip of bars, one a turn; `values[i]` is null where a turn has none. A click goes to the turn. */
function strip(label, values, { tint, tell, go, most }) {
  const largest = most ?? Math.max(...values.filter(isNumber).map(Math.abs), 0);
  const signed = values.some((v) => v < 0), foot = signed ? HIGH / 2 : HIGH - 1, room = signed ? HIGH / 2 - 1 : HIGH - 2;
  const bars = values.map((v, i) => {
    const size = isNumber(v) && largest > 0 ? (Math.abs(v) / largest) * room : 0;
    return h("g", { onclick: () => go(i) }, h("title", {}, `turn ${i + 1}: ${isNumber(v) ? tell(v) : "none"}`),
      h("rect", { class: "touch", x: i * WIDE, y: 0, width: WIDE, height: HIGH }),
      h("rect", { x: i * WIDE + 1, y: v < 0 ? foot : foot - size, width: WIDE - 2, height: size, style: { fill: tint(v) } }));
  });
  const shown = values.filter(isNumber), width = values.length * WIDE;
  return [h("dt", {}, label), h("dd", {}, h("svg", { width, height: HIGH, viewBox: `0 0 ${width} ${HIGH}`, role: "img", "aria-label": `${label} by turn: ${values.map((v) => (isNumber(v) ? tell(v) : "none")).join(", ")}` },
    h("line", { class: "rule", x1: 0, x2: width, y1: foot, y2: foot }), bars), h("span", { class: "soft small n" }, shown.length ? ` at most ${tell(Math.max(...shown))}` : " none"))];
}

/** Rewards by channel, and seconds in the engine and outside of it: a strip of bars for each. */
export function turnBars(turns, go, weights) {
  const channels = [...new Set(turns.flatMap((t) => Object.keys(t.rewards ?? {})))];
  const sign = (name) => (v) => (v * weightOf(weights, name) < 0 ? "var(--bad)" : "var(--good)");
  const parts = channels.map((name) => strip(name, turns.map((t) => t.rewards?.[name] ?? null), { tint: sign(name), tell: short, go }));
  const times = [["engine_s", "engine", "--c1"], ["duration_s", "environment", "--c0"]].filter(([key]) => turns.some((t) => isNumber(t[key])));
  const most = Math.max(...times.flatMap(([key]) => turns.map((t) => t[key]).filter(isNumber)), 0); // one scale for both
  parts.push(...times.map(([key, label, name]) => strip(`time in ${label}`, turns.map((t) => t[key] ?? null), { tint: () => `var(${name})`, tell: seconds, go, most })));
  return parts.length ? h("dl", { class: "turnbars" }, parts) : null;
}

/** What stands beside a turn: its rewards, seconds and counts, as numbers. */
export function turnFacts(t, weights) {
  const tone = (v) => (v > 0 ? "good" : v < 0 ? "bad" : "soft");
  const facts = Object.entries(t.rewards ?? {}).map(([name, v]) => h("span", { class: tone(v * weightOf(weights, name)) }, `${name} ${short(v)}`));
  const soft = (text) => h("span", { class: "soft" }, text);
  if (isNumber(t.prompt_tokens)) facts.push(soft(`read ${whole(t.prompt_tokens)} tokens`));
  if (isNumber(t.tokens)) facts.push(soft(`wrote ${whole(t.tokens)}`));
  if (isNumber(t.engine_s)) facts.push(soft(`${seconds(t.engine_s)} in the engine`));
  if (isNumber(t.duration_s)) facts.push(soft(`${seconds(t.duration_s)} in the environment`));
  for (const [name, n] of Object.entries(t.counts ?? {})) facts.push(h("span", { class: name.startsWith("tool_errors/") ? "warn" : "soft" }, `${name.replaceAll("_", " ").replace("/", ": ")} ${short(n)}`));
  return facts;
}

/** Of each row, the row and the turn that it forks from. Where nobody says it, a row follows the turn before its first one. */
export function forksOf(rows, turns) {
  if (rows) return rows;
  const numbers = [...new Set(turns.map((t) => t.row ?? 0))].sort((a, b) => a - b);
  return numbers.map((r) => {
    const first = turns.findIndex((t) => (t.row ?? 0) === r);
    return { row: r, parent: first > 0 ? turns[first - 1].row ?? 0 : null, after: first - 1 };
  });
}

/** The rows of a trajectory as a tree: a line each, turns as dots on it; nothing where there is one row. */
export function rowTree(rows, turns, go, weights) {
  if (rows.length < 2) return null;
  const numbers = rows.map((r, i) => r.row ?? i), x = (i) => 18 + 26 * (i + 1), y = (row) => 14 + 24 * numbers.indexOf(row);
  const width = x(turns.length - 1) + 70, height = 24 * rows.length + 4;
  const lines = rows.map((r, i) => {
    const own = turns.map((t, k) => ((t.row ?? 0) === numbers[i] ? k : -1)).filter((k) => k >= 0);
    const from = r.after >= 0 ? x(r.after) : x(-1), level = r.after >= 0 ? y(turns[r.after].row ?? 0) : y(r.parent === null ? numbers[i] : r.parent), end = own.length ? x(own.at(-1)) : from + 14;
    return [h("path", { class: "branch", d: `M${from} ${level}L${from + (level === y(numbers[i]) ? 0 : 10)} ${y(numbers[i])}L${end} ${y(numbers[i])}` }), h("text", { x: end + 10, y: y(numbers[i]) + 4 }, `row ${i + 1}`)];
  });
  const dots = turns.map((t, k) => {
    const values = Object.entries(t.rewards ?? {}).filter(([, v]) => isNumber(v)), sum = values.reduce((a, [name, v]) => a + v * weightOf(weights, name), 0);
    const told = [`turn ${k + 1}, row ${numbers.indexOf(t.row ?? 0) + 1}`, ...Object.entries(t.rewards ?? {}).map(([name, v]) => `${name} ${short(v)}`)].join(", ");
    return h("g", { class: "dot", role: "button", tabindex: 0, "aria-label": told, onclick: () => go(k), onkeydown: (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); go(k); } } },
      h("title", {}, told), h("circle", { cx: x(k), cy: y(t.row ?? 0), r: 7, style: { fill: sum > 0 ? "var(--good)" : sum < 0 ? "var(--bad)" : "var(--soft)" } }), h("text", { class: "mid", x: x(k), y: y(t.row ?? 0) + 3.5 }, k + 1));
  });
  const words = rows.map((r, i) => (r.parent === null ? null : `row ${i + 1} forks from row ${numbers.indexOf(r.parent) + 1} ${r.after >= 0 ? `after turn ${r.after + 1}` : "before its first turn"}${isNumber(r.shared) ? ` (${whole(r.shared)} tokens are the same)` : ""}`)).filter(Boolean);
  return h("div", { class: "tree" }, h("div", { class: "scroll" }, h("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": words.join("; ") }, lines, dots)), h("p", { class: "soft small" }, `${words.join("; ")}.`));
}
