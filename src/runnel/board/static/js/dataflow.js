// The graph of workers and streams, with what flows through it now.

import { h, fill, compact, percent } from "./dom.js";

const COLUMN = { actor: 0, reference: 1, policy: 1, buffer: 2, trainer: 3, evaluator: 4 };
const BOX = [132, 40], GAP = [92, 16], MOST = 6;

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
    const width = Math.max(...nodes.map((n) => n.x)) + BOX[0] + 8, top = 44, height = Math.max(...nodes.map((n) => n.y)) + BOX[1] + top + 70;
    fill(this.element, h("svg", { width, height, viewBox: `0 ${-top} ${width} ${height}`, role: "img", "aria-label": "workers and streams" },
      h("defs", {}, h("marker", { id: "tip", viewBox: "0 0 8 8", refX: "7", refY: "4", markerWidth: "7", markerHeight: "7", orient: "auto" }, h("path", { d: "M0 0 8 4 0 8z", class: "tip" }))),
      edges.map((e) => arrow(e)), nodes.map((n) => box(n))));
  }
}

/** Many workers of a kind are one box; a few are a box each. */
function merged(workers, d) {
  const kinds = new Map();
  for (const w of workers) kinds.set(w.kind, [...(kinds.get(w.kind) ?? []), w]);
  const idle = new Map(d.stages.map((s) => [s.worker, s.idle]));
  const out = [];
  for (const [kind, members] of kinds) {
    if (members.length > MOST) out.push({ kind, name: `${members.length} × ${kind}`, members: members.map((m) => m.name), note: mean(members.map((m) => idle.get(m.name))) });
    else members.forEach((m) => out.push({ kind, name: m.name, members: [m.name], note: idle.get(m.name), process: m.process }));
  }
  return out;
}

const mean = (values) => { const known = values.filter((v) => typeof v === "number"); return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null; };

function place(nodes) {
  const used = [...new Set(nodes.map((n) => COLUMN[n.kind] ?? 3))].sort();
  const filled = new Map();
  for (const n of nodes) {
    const column = used.indexOf(COLUMN[n.kind] ?? 3), row = filled.get(column) ?? 0;
    filled.set(column, row + 1);
    n.x = 4 + column * (BOX[0] + GAP[0]);
    n.y = row * (BOX[1] + GAP[1]);
  }
  const tallest = Math.max(...filled.values());
  for (const n of nodes) {
    const column = Math.round((n.x - 4) / (BOX[0] + GAP[0]));
    n.y += ((tallest - filled.get(column)) * (BOX[1] + GAP[1])) / 2;
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
  const back = b.x <= a.x, params = stream.kind === "params";
  const [x1, x2] = back ? [a.x + BOX[0] / 2, b.x + BOX[0] / 2] : [a.x + BOX[0], b.x];
  const [y1, y2] = back ? [a.y + BOX[1], b.y + BOX[1]] : [a.y + BOX[1] / 2, b.y + BOX[1] / 2];
  const low = Math.max(y1, y2) + 34;
  const path = back ? `M${x1} ${y1}C${x1} ${low} ${x2} ${low} ${x2} ${y2 + 3}` : `M${x1} ${y1}C${x1 + 44} ${y1} ${x2 - 44} ${y2} ${x2 - 2} ${y2}`;
  const [tx, ty] = back ? [(x1 + x2) / 2, low + 2] : [(x1 + x2) / 2, Math.min(y1, y2) - 8 - (params ? 12 : 0)];
  return h("g", { class: `edge ${stream.kind}` }, h("path", { d: path, "marker-end": "url(#tip)" }), first ? h("text", { x: tx, y: ty }, text) : null);
}

function box(n) {
  const note = typeof n.note === "number" ? `waits ${percent(n.note)}` : n.process ? `process ${n.process}` : "";
  return h("g", { class: `node ${n.kind}` }, h("rect", { x: n.x, y: n.y, width: BOX[0], height: BOX[1], rx: 7 }),
    h("text", { x: n.x + BOX[0] / 2, y: n.y + 17 }, n.name), h("text", { class: "note", x: n.x + BOX[0] / 2, y: n.y + 32 }, note));
}
