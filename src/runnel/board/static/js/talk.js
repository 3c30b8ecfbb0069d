// A conversation of several turns as text: as the learner trained on it, token by token, or as it was played, message by message.

import { h, fill, short, whole, counted, seconds, color } from "./dom.js";
import { turnBars, turnFacts, forksOf, rowTree, weightOf } from "./turns.js";

const LONG = 700;
const ENDED = { terminated: "ended by itself", turns: "cut: no more turns", context: "cut: no more room", time: "cut: no more time", environment: "cut by its environment" };
const isTool = (role, text) => role === "tool" || (role === "user" && text.trimStart().startsWith("<tool_response>"));
const firstLine = (text) => text.replace(/<\/?tool_response>/g, "").trim().split("\n")[0].slice(0, 120);

/** Goes to a turn of `root`, also one in a part that is folded. */
function goer(root) {
  return (k) => {
    const found = root().querySelector(`[data-turn="${k}"]`);
    if (!found) return;
    found.scrollIntoView({ block: "center" });
    found.focus({ preventScroll: true });
  };
}

/** What somebody else than the policy said. Results of tools and long texts are folded. */
export function said(role, title, text, body) {
  const tool = isTool(role, text);
  if (tool && role !== "tool") title = `${role} · result of a tool`;
  return h("details", { class: `said ${tool ? "tool" : role || "environment"}`, open: !tool && text.length <= LONG },
    h("summary", {}, h("span", { class: "who" }, title || role || "environment"), h("span", { class: "soft small first" }, firstLine(text))), body);
}

/* ------------------------------------------------------------------------------------------------ as the learner saw it */
/** One trajectory of a group: `span(j)` is the element of token j. It is drawn when it is opened first. */
export function trainedTalk(row, i, { open, span, states, weights }) {
  const turns = row.turns ?? [], body = h("div", {}), errors = row.tool_errors ?? 0;
  const box = h("details", { class: "completion talkrow", open: open === true },
    h("summary", {}, [h("b", {}, `#${i + 1}`), h("span", { class: "n" }, `reward ${short(row.reward)}`), typeof row.advantage === "number" ? h("span", { class: row.advantage > 0 ? "good" : row.advantage < 0 ? "bad" : "soft" }, `advantage ${short(row.advantage)}`) : null,
      h("span", { class: "soft" }, counted(turns.length, "turn")), row.tool_calls !== undefined ? h("span", { class: errors ? "warn" : "soft" }, `${counted(row.tool_calls, "tool call")}, ${whole(errors)} failed`) : null,
      row.truncated ? h("span", { class: "warn" }, "cut") : null].map((part) => [part, " "])), body);
  const draw = () => {
    if (!box.open || body.firstChild) return;
    const go = goer(() => box), parts = Object.entries(row.rewards ?? {});
    fill(body, parts.length ? h("dl", { class: "parts" }, parts.map(([k, v]) => [h("dt", {}, k), h("dd", {}, short(v), weightOf(weights, k) === 1 ? null : h("span", { class: "soft" }, ` × ${short(weightOf(weights, k))}`))])) : null,
      turnBars(turns, go, weights), rowTree(forksOf(row.rows, turns), turns, go, weights), blocks(row, span, states, weights));
  };
  box.addEventListener("toggle", draw);
  draw();
  return box;
}

/** Turns and what lies between them, in their order. What a template writes before and behind an answer stands with that answer. */
function blocks(row, span, states, weights) {
  const texts = row.tokens ?? [], control = new Set(row.control ?? []);
  const plain = (a, b) => texts.slice(a, b).map((t, k) => (control.has(a + k) ? h("i", { class: "mark-token" }, t) : t));
  const items = [...(row.turns ?? []).map((t, k) => ({ ...t, turn: k })), ...(row.messages ?? [])].sort((a, b) => a.start - b.start || a.end - b.end);
  const starts = new Set(row.row_starts ?? []), out = [];
  const named = (row.messages ?? []).some((m) => m.role);
  let head = null, last = null;
  const titleOf = (item) => (item.role || !row.row_starts?.includes(item.start) ? "" : "the message goes on");
  for (const item of items) {
    if (starts.delete(item.start)) out.push(h("div", { class: "new-row" }, h("span", { class: "soft small" }, `row ${row.row_starts.indexOf(item.start) + 2}: the model read this as a prompt of its own`)));
    if (item.turn === undefined) {
      const text = texts.slice(item.said, item.end).join("");
      if (item.role === "assistant" && !text.trim()) { head = item; continue; }
      if (!item.role && named && last?.end === item.start && !row.row_starts?.includes(item.start)) { // what the template writes behind an answer
        if (text.trim()) last.text.append(h("span", { class: "tok masked", title: "not trained on" }, plain(item.start, item.end)));
        continue;
      }
      if (texts.slice(item.start, item.end).join("").trim()) out.push(said(item.role, titleOf(item), text, h("pre", {}, plain(item.start, item.end))));
      continue;
    }
    const before = head ? plain(head.start, head.end) : [];
    head = null;
    last = { end: item.end, text: h("pre", { class: "tokens" }, before.length ? h("span", { class: "tok masked" }, before) : null, texts.slice(item.start, item.end).map((_, k) => span(item.start + k))) };
    out.push(h("section", { class: "said assistant turn", "data-turn": item.turn, tabindex: -1 }, h("header", {}, h("b", {}, `turn ${item.turn + 1}`), turnFacts(item, weights), state(item.state, states)), last.text));
  }
  return out;
}

/** The state that a turn was in; where others of the group were in it too, a button that marks them. */
function state(number, states) {
  if (number === undefined) return null;
  const name = `state ${number + 1}`;
  if ((states.get(number) ?? 0) < 2) return h("span", { class: "soft" }, name);
  return h("button", { type: "button", class: "state", "data-state": number, "aria-pressed": "false", title: `${states.get(number)} turns of the group were in this state`, onclick: (e) => {
    const on = e.currentTarget.getAttribute("aria-pressed") !== "true";
    e.currentTarget.closest(".group").querySelectorAll(".state").forEach((b) => b.setAttribute("aria-pressed", String(on && Number(b.dataset.state) === number)));
  } }, h("i", { class: "swatch", style: { background: color(number) } }), name);
}

/** How many turns of a group were in each state. */
export function countStates(rows) {
  const found = new Map();
  rows.flatMap((r) => r.turns ?? []).forEach((t) => { if (t.state !== undefined) found.set(t.state, (found.get(t.state) ?? 0) + 1); });
  return found;
}

/* -------------------------------------------------------------------------------------------------------- as it was played */
/** A sampled conversation: messages by role, calls and results of tools folded, numbers of each turn beside its message. */
export function playedTalk(talk) {
  const turns = (Array.isArray(talk.turns) ? talk.turns : []).filter((t) => t && typeof t === "object"), messages = (Array.isArray(talk.messages) ? talk.messages : []).filter((m) => m && typeof m === "object");
  const root = h("div", {}), go = goer(() => root), sum = (key) => turns.map((t) => t[key]).filter((v) => typeof v === "number").reduce((a, b) => a + b, 0);
  const fact = (v, label) => h("div", { class: "fact" }, h("b", {}, v), h("span", {}, label));
  const task = talk.task && Object.keys(talk.task).length ? h("details", {}, h("summary", {}, "task"), h("pre", { class: "box" }, JSON.stringify(talk.task, null, 1))) : null;
  return fill(root, h("p", { class: "soft small" }, `played by version ${whole(talk.version)}${talk.sample_id !== undefined ? ` · sample ${talk.sample_id}` : ""}${agentOf(talk)}`),
    h("div", { class: "facts" }, fact(short(talk.return), "return"), fact(whole(turns.length), turns.length === 1 ? "turn" : "turns"), fact(ENDED[talk.reason] ?? String(talk.reason ?? "–"), "its end"), fact(seconds(sum("engine_s")), "in the engine"), fact(seconds(sum("duration_s")), "in the environment")),
    task, turnBars(turns, go, talk.weights), rowTree(forksOf(null, turns), turns, go, talk.weights), messages.map((m) => message(m, turns, talk.weights)));
}

function message(m, turns, weights) {
  const text = typeof m.content === "string" ? m.content : JSON.stringify(m.content ?? "");
  const turn = turns[m.turn];
  if (m.role !== "assistant") return said(String(m.role ?? ""), m.name ? `${m.role} · ${m.name}` : "", text, h("pre", {}, text));
  const fresh = m.turn > 0 && turn && (turn.row ?? 0) !== (turns[m.turn - 1]?.row ?? 0);
  return [fresh ? h("div", { class: "new-row" }, h("span", { class: "soft small" }, "a new row: the model read what came before as a prompt of its own")) : null,
    h("section", { class: "said assistant turn", "data-turn": m.turn ?? null, tabindex: -1 }, h("header", {}, h("b", {}, turn ? `turn ${m.turn + 1}` : "assistant"), turn ? turnFacts(turn, weights) : null),
      text ? h("pre", {}, text) : null, (Array.isArray(m.tool_calls) ? m.tool_calls : []).map(call), (Array.isArray(m.tool_errors) ? m.tool_errors : []).map((e) => h("p", { class: "warn small" }, `not a call (${e?.kind}): ${e?.text}`)))];
}

/** A call of a tool: its name and arguments in a line, all of it when opened. */
function call(c) {
  const made = c?.function ?? c ?? {}, given = typeof made.arguments === "string" ? made.arguments : JSON.stringify(made.arguments ?? {});
  return h("details", { class: "call" }, h("summary", {}, h("span", { class: "who" }, `calls ${made.name ?? "?"}`), h("span", { class: "soft small first" }, firstLine(given))), h("pre", {}, typeof made.arguments === "string" ? made.arguments : JSON.stringify(made.arguments ?? {}, null, 1)));
}

/** Whose conversation it is, of several agents. */
export const agentOf = (told) => (told.agent === undefined ? "" : ` · ${typeof told.agent === "number" ? `agent ${told.agent + 1}` : told.agent}`);
export const endOf = (reason) => ENDED[reason] ?? reason;
