// The league of a run of self-play: who beats whom as a heat map, ratings and lineage over versions, the members as a table.

import { h, fill, short, whole, percent, notice, choice, color } from "./dom.js";
import { get } from "./api.js";

/** How much of a colour a cell takes at most: then its number keeps a contrast of 4.5 to 1 in both themes. */
const STRONGEST = 45;
const WIDTH = 900, HEIGHT = 300, EDGE = { left: 52, right: 110, top: 16, bottom: 30 };

export class League {
  constructor(id) {
    Object.assign(this, { id, seat: 0, drawn: "" });
    this.element = h("div", { class: "league" });
  }

  async update() {
    try {
      const found = await get("/api/league", { run: this.id }), text = JSON.stringify(found);
      if (text === this.drawn) return;
      Object.assign(this, { drawn: text, data: found });
      this.draw();
    } catch (error) { fill(this.element, notice([error.message], "bad")); }
  }

  draw() {
    const d = this.data, matrix = d.matrices[Math.min(this.seat, d.matrices.length - 1)];
    const pick = (i) => { this.seat = i; this.draw(); };
    fill(this.element, notice(d.warnings),
      h("h2", {}, "Who beats whom"),
      h("div", { class: "controls" }, choice("seats", d.matrices.map((m, i) => [i, m.title]), this.seat, pick),
        h("span", { class: "soft small" }, "share of points of the row against the column; a draw is half a win")),
      matrix.rows.length ? heat(matrix) : h("p", { class: "soft" }, "No games yet."),
      h("h2", {}, "Ratings and lineage"), lineage(d),
      h("p", { class: "soft small" }, "Lines: the run's own ratings of live members. A dot is a copy that was frozen there; its bar ends where it was dropped."),
      h("h2", {}, `Members at version ${whole(d.version)}`), members(d),
      d.num_hidden ? h("p", { class: "soft small" }, `${whole(d.num_hidden)} that were dropped earlier are not shown.`) : null);
  }
}

/** A cell is blue where the row wins, orange where it loses, and always says its number. */
function heat(m) {
  const cell = (v, games, a, b) => {
    if (typeof v !== "number") return h("td", { class: "heat none", title: a === b ? "" : `${a} and ${b} have not met` }, a === b ? "" : "–");
    const share = Math.round(STRONGEST * Math.min(1, Math.abs(2 * v - 1)));
    return h("td", { class: "heat", title: `${a} against ${b}: ${percent(v)} of the points of ${whole(games)} games`,
      style: { background: `color-mix(in srgb, var(${v >= 0.5 ? "--c0" : "--c1"}) ${share}%, var(--paper))` } }, v.toFixed(2));
  };
  return h("div", { class: "scroll" }, h("table", { id: "payoffs" }, h("thead", {}, h("tr", {}, h("th", {}, ""), m.columns.map((b) => h("th", { class: "n", scope: "col" }, b)))),
    h("tbody", {}, m.rows.map((a, i) => h("tr", {}, h("th", { scope: "row" }, a), m.columns.map((b, j) => cell(m.values[i][j], m.games[i][j], a, b)))))));
}

function lineage(d) {
  const frozen = d.members.filter((m) => !m.live && typeof m.elo === "number"), lines = Object.entries(d.history).filter(([, points]) => points.length);
  const ratings = [...frozen.map((m) => m.elo), ...lines.flatMap(([, points]) => points.map(([, elo]) => elo))];
  if (!ratings.length) return h("p", { class: "soft" }, "No ratings yet.");
  const low = Math.min(...ratings), high = Math.max(...ratings), span = high - low || 1, last = Math.max(d.version, 1);
  const x = (v) => EDGE.left + (v / last) * (WIDTH - EDGE.left - EDGE.right), y = (r) => HEIGHT - EDGE.bottom - ((r - low) / span) * (HEIGHT - EDGE.top - EDGE.bottom);
  const roles = lines.map(([name]) => name), tint = (name) => color(Math.max(roles.indexOf(name), 0));
  const ticks = [low, (low + high) / 2, high];
  return h("div", { class: "scroll" }, h("svg", { id: "lineage", width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `ratings of ${d.members.length} members over ${last} versions` },
    ticks.map((t) => [h("line", { class: "rule", x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y(t), y2: y(t) }), h("text", { class: "at", x: EDGE.left - 8, y: y(t) + 4 }, whole(t))]),
    h("text", { class: "when", x: EDGE.left, y: HEIGHT - 8 }, "0"), h("text", { class: "at", x: x(last), y: HEIGHT - 8 }, `version ${whole(last)}`),
    lines.map(([name, points]) => h("polyline", { class: "live", points: points.map(([v, elo]) => `${x(v).toFixed(1)},${y(elo).toFixed(1)}`).join(" "), style: { stroke: tint(name) } })),
    frozen.map((m) => mark(m, { x, y, last, tint })), spread(lines.map(([name, points]) => ({ name, y: y(points.at(-1)[1]) }))).map((e) => h("text", { class: "name", x: x(last) + 8, y: e.y + 4, style: { fill: tint(e.name) } }, e.name))));
}

/** A frozen copy: a dot where it was made, on a bar for as long as it was in the pool; hollow once it is dropped. */
function mark(m, { x, y, last, tint }) {
  const from = m.version ?? m.added, to = m.dropped ?? last, here = m.dropped === null;
  const told = `${m.name} from ${m.parent || "nobody"}: ${short(Math.round(m.elo))}, ${here ? "in the pool" : `dropped at ${whole(m.dropped)}`}`;
  return h("g", { class: here ? "copy" : "copy gone" }, h("title", {}, told), h("line", { x1: x(from), x2: x(to), y1: y(m.elo), y2: y(m.elo), style: { stroke: tint(m.parent) } }),
    h("circle", { cx: x(from), cy: y(m.elo), r: 4, style: { stroke: tint(m.parent), fill: here ? tint(m.parent) : "var(--paper)" } }));
}

/** Names at the end of lines, moved apart where they would overlap. */
function spread(ends) {
  const sorted = [...ends].sort((a, b) => a.y - b.y);
  sorted.forEach((e, i) => { if (i && e.y < sorted[i - 1].y + 13) e.y = sorted[i - 1].y + 13; });
  return sorted;
}

function members(d) {
  const rating = (r) => (r ? (r.held ? `${whole(r.value)} (held)` : `${whole(r.value)} (${whole(r.low)} to ${whole(r.high)})`) : "–");
  const now = (m) => (m.live ? "live" : m.dropped === null ? "in the pool" : `dropped at ${whole(m.dropped)}`);
  const order = [...d.members].sort((a, b) => (a.dropped !== null) - (b.dropped !== null) || (b.rating?.value ?? b.elo ?? 0) - (a.rating?.value ?? a.elo ?? 0));
  return h("div", { class: "scroll" }, h("table", { id: "members" }, h("thead", {}, h("tr", {}, ["member", "from", "added at", "now"].map((t) => h("th", {}, t)), ["Elo, 95 % interval", "Elo of the run", "picked"].map((t) => h("th", { class: "n" }, t)))),
    h("tbody", {}, order.map((m) => h("tr", { class: m.dropped === null ? "" : "soft" }, h("td", {}, m.name), h("td", {}, m.parent || "–"), h("td", {}, whole(m.added)), h("td", {}, now(m)),
      h("td", { class: "n" }, rating(m.rating)), h("td", { class: "n" }, whole(m.elo)), h("td", { class: "n" }, typeof m.picked === "number" ? percent(m.picked) : "–"))))));
}
