// The graph of workers and streams, with the rates of now.

import { h, fill, compact, percent } from "./dom.js";

const COLUMN = { actor: 0, reference: 1, policy: 1, buffer: 2, trainer: 3, evaluator: 4 };
const ASKED = 1, BOX = [132, 40], GAP = 150, RISE = 76, LINE = 12;

export class Dataflow {
  constructor() { this.element = h("div", { class: "scroll dataflow" }); }

  update(d) {
    const { workers = [], streams = [] } = d.dataflow;
    if (!workers.length) {
      fill(this.element, d.graph ? h("pre", { class: "box wide" }, d.graph) : h("p", { class: "soft" }, "This run has no record of its workers and streams."));
      return;
    }
    const nodes = merged(workers, d);
    place(nodes);
    const at = new Map(nodes.flatMap((n) => n.members.map((m) => [m, n])));
    const edges = links(streams, at, d);
    const lines = Math.max(1, ...edges.map((e) => e.lines.length));
    const width = Math.max(...nodes.map((n) => n.x)) + BOX[0] + 8, top = nodes.some((n) => n.above) ? 58 + LINE * lines : 34, height = Math.max(...nodes.map((n) => n.y)) + BOX[1] + top + 74;
    fill(this.element, h("svg", { width, height, viewBox: `0 ${-top} ${width} ${height}`, role: "img", "aria-label": "workers and streams" },
      h("defs", {}, h("marker", { id: "tip", viewBox: "0 0 8 8", refX: "7", refY: "4", markerWidth: "7", markerHeight: "7", orient: "auto" }, h("path", { d: "M0 0 8 4 0 8z", class: "tip" }))),
      edges.map((e) => arrow(e)), nodes.map((n) => box(n))));
  }
}

/** Workers of one kind and name share a box, so that the graph stays small. */
function merged(workers, d) {
  const kinds = new Map(), base = (w) => `${w.kind} ${w.name.replace(/-\d+$/, "")}`;
  for (const w of workers) kinds.set(base(w), [...(kinds.get(base(w)) ?? []), w]);
  const now = d.status === "running", idle = new Map(d.stages.map((s) => [s.worker, now ? s.idle_recent : s.idle]));
  return [...kinds.values()].map((members) => ({ kind: members[0].kind, many: members.length > 1, members: members.map((m) => m.name), note: mean(members.map((m) => idle.get(m.name))),
    name: members.length > 1 ? `${members.length} × ${members[0].name.replace(/-\d+$/, "")}` : members[0].name, process: members.length > 1 ? null : members[0].process }));
}

const mean = (values) => { const known = values.filter((v) => typeof v === "number"); return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null; };

/** Workers on the path of samples stand in a row; further workers of a column stand above it. Policy workers stand below, between
 * the actors that ask them and the next column. */
function place(nodes) {
  const column = (n) => COLUMN[n.kind] ?? 3, step = BOX[0] + GAP;
  const used = [...new Set(nodes.map(column))].sort((a, b) => a - b).filter((c) => c !== ASKED);
  const stacks = new Map(used.map((c) => [c, nodes.filter((n) => column(n) === c).sort((a, b) => a.members[0].startsWith("actor") - b.members[0].startsWith("actor"))]));
  const row = (Math.max(1, ...[...stacks.values()].map((s) => s.length)) - 1) * RISE;
  let below = 0;
  for (const n of nodes) {
    const stack = stacks.get(column(n));
    n.x = 4 + (column(n) === ASKED ? 0.62 * step + below++ * step : used.indexOf(column(n)) * step);
    n.y = column(n) === ASKED ? row + BOX[1] + 52 : row - (stack.length - 1 - stack.indexOf(n)) * RISE;
    n.above = n.y < row;
  }
}

/** One arrow from box to box for all streams of a kind, with a line of text for each, so that names never overlap. */
function links(streams, at, d) {
  const out = new Map(), told = new Set();
  for (const s of streams) {
    for (const from of s.from ?? []) {
      for (const to of s.to ?? []) {
        const a = at.get(from), b = at.get(to), key = a && b ? `${s.kind} ${a.members[0]} ${b.members[0]}` : "";
        if (!key || a === b) continue;
        if (!out.has(key)) out.set(key, { a, b, kind: s.kind, streams: new Set(), lines: [] });
        const edge = out.get(key);
        if (edge.streams.has(s.name)) continue;
        edge.streams.add(s.name);
        if (s.kind !== "params" || !told.has(s.name)) edge.lines.push(...label(s, d).split(" · "));
        told.add(s.name);
      }
    }
  }
  return [...out.values()];
}

function label(s, d) {
  const running = d.status === "running", rate = (v, unit) => (running && v > 0 ? `${compact(Number(v.toPrecision(3)))} ${unit}` : "");
  if (s.kind === "params") return ["versions", rate(d.rates["@version"], "/s")].filter(Boolean).join(" ");
  const depth = d.streams.find((x) => x.name === s.name);
  const parts = [s.name, rate(d.rates[s.name], "samples/s")];
  if (depth && s.kind === "samples") parts.push(`${depth.queued} queued`);
  return parts.filter(Boolean).join(" · ");
}

function arrow({ a, b, kind, lines }) {
  const asks = b.y > a.y && kind === "inference", params = kind === "params", mid = BOX[1] / 2;
  let path, tx, ty, rise = LINE * (lines.length - 1);
  if (params && b.above) { // over the top
    const high = b.y - 76, x1 = a.x + BOX[0] * 0.6, x2 = b.x + BOX[0] * 0.5;
    path = `M${x1} ${a.y}C${x1} ${high} ${x2} ${high} ${x2} ${b.y - 3}`;
    [tx, ty] = [(x1 + x2) / 2, b.y - 56];
  } else if (params && (b.x < a.x || b.y > a.y)) {
    const low = Math.max(a.y, b.y) + BOX[1] + 40, x1 = a.x + BOX[0] * 0.4, x2 = b.x + BOX[0] * (b.y > a.y ? 0.5 : 0.3);
    path = `M${x1} ${a.y + BOX[1]}C${x1} ${low} ${x2} ${low} ${x2} ${b.y + BOX[1] + 3}`;
    [tx, ty, rise] = [(x1 + x2) / 2, low - 2, 0];
  } else if (asks) {
    path = `M${a.x + BOX[0] * 0.6} ${a.y + BOX[1]}C${a.x + BOX[0] * 0.6} ${b.y + mid} ${b.x - 30} ${b.y + mid} ${b.x - 2} ${b.y + mid}`;
    [tx, ty, rise] = [b.x - 34, b.y + mid + 16, 0];
  } else { // from above it comes down on the next box, clear of what flows below
    const x1 = a.x + BOX[0], y = a.y + mid, x2 = b.x + BOX[0] * 0.25;
    path = a.y === b.y ? `M${x1} ${y}L${b.x - 2} ${y}` : `M${x1} ${y}H${b.x - 12}Q${x2} ${y} ${x2} ${b.y - 3}`;
    [tx, ty] = [(x1 + b.x) / 2, y - 7];
  }
  return h("g", { class: `edge ${kind}` }, h("path", { d: path, "marker-end": "url(#tip)" }),
    lines.length ? h("text", { x: tx, y: ty - rise }, lines.map((l, i) => h("tspan", { x: tx, dy: i ? LINE : 0 }, l))) : null);
}

function box(n) {
  const note = typeof n.note === "number" ? `waits ${percent(n.note)}` : n.process ? `process ${n.process}` : "";
  const behind = n.many ? h("rect", { x: n.x + 4, y: n.y - 4, width: BOX[0], height: BOX[1], rx: 7 }) : null;
  return h("g", { class: `node ${n.kind}` }, behind, h("rect", { x: n.x, y: n.y, width: BOX[0], height: BOX[1], rx: 7 }),
    h("text", { x: n.x + BOX[0] / 2, y: n.y + 17 }, n.name), h("text", { class: "note", x: n.x + BOX[0] / 2, y: n.y + 32 }, note));
}
