// The graph of workers and streams, with what flows through it now.

import { h, fill, compact, percent } from "./dom.js";

const COLUMN = { actor: 0, reference: 1, policy: 1, buffer: 2, trainer: 3, evaluator: 4 };
const ASKED = 1, BOX = [132, 40], GAP = 150;

export class Dataflow {
  constructor() { this.element = h("div", { class: "scroll dataflow" }); }

  update(d) {
    const { workers = [], streams = [] } = d.dataflow;
    if (!workers.length) {
      fill(this.element, d.graph ? h("pre", { class: "box wide" }, d.graph) : h("p", { class: "soft" }, "This run did not write down its graph."));
      return;
    }
    const nodes = merged(workers, d);
    place(nodes);
    const at = new Map(nodes.flatMap((n) => n.members.map((m) => [m, n])));
    const edges = links(streams, at, d);
    const width = Math.max(...nodes.map((n) => n.x)) + BOX[0] + 8, top = 34, height = Math.max(...nodes.map((n) => n.y)) + BOX[1] + top + 74;
    fill(this.element, h("svg", { width, height, viewBox: `0 ${-top} ${width} ${height}`, role: "img", "aria-label": "workers and streams" },
      h("defs", {}, h("marker", { id: "tip", viewBox: "0 0 8 8", refX: "7", refY: "4", markerWidth: "7", markerHeight: "7", orient: "auto" }, h("path", { d: "M0 0 8 4 0 8z", class: "tip" }))),
      edges.map((e) => arrow(e)), nodes.map((n) => box(n))));
  }
}

/** The workers of a kind are one box: a row each would hide what flows. */
function merged(workers, d) {
  const kinds = new Map();
  for (const w of workers) kinds.set(w.kind, [...(kinds.get(w.kind) ?? []), w]);
  const idle = new Map(d.stages.map((s) => [s.worker, s.idle]));
  return [...kinds].map(([kind, members]) => ({ kind, many: members.length > 1, members: members.map((m) => m.name), note: mean(members.map((m) => idle.get(m.name))),
    name: members.length > 1 ? `${members.length} × ${kind}` : members[0].name, process: members.length > 1 ? null : members[0].process }));
}

const mean = (values) => { const known = values.filter((v) => typeof v === "number"); return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null; };

/** Those on the samples' way stand in a row; those that answer stand below, between who asks and the next. */
function place(nodes) {
  const used = [...new Set(nodes.map((n) => COLUMN[n.kind] ?? 3))].sort((a, b) => a - b).filter((c) => c !== ASKED);
  let below = 0;
  for (const n of nodes) {
    const column = COLUMN[n.kind] ?? 3, step = BOX[0] + GAP;
    n.x = 4 + (column === ASKED ? 0.62 * step + below++ * step : used.indexOf(column) * step);
    n.y = column === ASKED ? BOX[1] + 52 : 0;
  }
}

function links(streams, at, d) {
  const out = new Map();
  for (const s of streams) {
    for (const from of s.from ?? []) {
      for (const to of s.to ?? []) {
        const a = at.get(from), b = at.get(to);
        if (!a || !b || a === b) continue;
        const key = `${s.name} ${a.name} ${b.name}`;
        if (!out.has(key)) out.set(key, { a, b, stream: s, first: ![...out.values()].some((e) => e.stream === s), label: label(s, d) });
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

function arrow({ a, b, stream, first, label: text }) {
  const asks = b.y > a.y, params = stream.kind === "params", mid = BOX[1] / 2;
  let path, tx, ty;
  if (params && (b.x < a.x || b.y > a.y)) {
    const low = Math.max(a.y, b.y) + BOX[1] + 40, x1 = a.x + BOX[0] * 0.4, x2 = b.x + BOX[0] * (b.y ? 0.5 : 0.3);
    path = `M${x1} ${a.y + BOX[1]}C${x1} ${low} ${x2} ${low} ${x2} ${b.y + BOX[1] + 3}`;
    [tx, ty] = [(x1 + x2) / 2, low - 2];
  } else if (asks) {
    path = `M${a.x + BOX[0] * 0.6} ${a.y + BOX[1]}C${a.x + BOX[0] * 0.6} ${b.y + mid} ${b.x - 30} ${b.y + mid} ${b.x - 2} ${b.y + mid}`;
    [tx, ty] = [b.x - 34, b.y + mid + 16];
  } else {
    path = `M${a.x + BOX[0]} ${a.y + mid}L${b.x - 2} ${b.y + mid}`;
    [tx, ty] = [(a.x + BOX[0] + b.x) / 2, a.y + mid - 7];
  }
  const lines = text.split(" · "), high = asks || params ? 0 : 12 * (lines.length - 1);
  return h("g", { class: `edge ${stream.kind}` }, h("path", { d: path, "marker-end": "url(#tip)" }),
    first ? h("text", { x: tx, y: ty - high }, lines.map((l, i) => h("tspan", { x: tx, dy: i ? 12 : 0 }, l))) : null);
}

function box(n) {
  const note = typeof n.note === "number" ? `waits ${percent(n.note)}` : n.process ? `process ${n.process}` : "";
  const behind = n.many ? h("rect", { x: n.x + 4, y: n.y - 4, width: BOX[0], height: BOX[1], rx: 7 }) : null;
  return h("g", { class: `node ${n.kind}` }, behind, h("rect", { x: n.x, y: n.y, width: BOX[0], height: BOX[1], rx: 7 }),
    h("text", { x: n.x + BOX[0] / 2, y: n.y + 17 }, n.name), h("text", { class: "note", x: n.x + BOX[0] / 2, y: n.y + 32 }, note));
}
