// One chart: uPlot with our colours, a tooltip of the nearest lines, zoom that asks the server for detail, and keys.
/* global uPlot */

import { h, fill, short, compact, labels, middle, seconds, token, paint } from "./dom.js";

const HEIGHT = 220;
const NUM_NAMED = 7;
const NUM_FEW = 30;

/** Axis names, as people read them. */
export const AXES = { steps: "steps", version: "updates", samples: "samples", tokens: "tokens", wall_s: "wall time" };

/** Charts over one axis: they share a cursor, and a zoom into one is a zoom into all, to the same values. */
export class Link {
  constructor(key) { Object.assign(this, { key, charts: new Set(), span: null }); }

  zoom(span) {
    this.span = span;
    this.charts.forEach((chart) => chart.show(span));
  }
}

export class Chart {
  /** `load(span)` gives {x, lines: [{label, color, y, low, high, members, faint, marks, dash}], axis}; `title` is drawn above. */
  constructor({ title, load, height = HEIGHT, link = new Link(null), log = () => false, unit = short, legend = false }) {
    Object.assign(this, { title, load, height, link, log, unit, legend, span: link.span, data: null, plot: null, seen: false });
    this.said = h("span", { class: "soft small" });
    this.reset = h("button", { class: "plain small", hidden: !link.span, onclick: () => link.zoom(null) }, "whole");
    this.tip = h("div", { class: "tip", hidden: true });
    this.box = h("div", { class: "plot", tabindex: "0", role: "img", "aria-label": title, onkeydown: (e) => this.key(e), onpointerdown: () => this.grab() });
    link.charts.add(this);
    this.element = h("figure", { class: "chart" }, h("figcaption", {}, h("b", {}, title), this.said, this.reset), this.box, this.tip);
    this.resize = new ResizeObserver(() => this.fit());
    this.look = new IntersectionObserver(([entry]) => this.watch(entry.isIntersecting), { rootMargin: "200px" });
    this.resize.observe(this.box);
    this.look.observe(this.element);
    this.onTheme = () => this.draw();
    addEventListener("themechange", this.onTheme);
  }

  watch(visible) {
    this.visible = visible;
    if (visible && (!this.seen || this.stale)) this.refresh();
  }

  /** Ask again; a chart that is out of sight waits until it is seen. */
  async refresh() {
    if (!this.visible) { this.stale = true; return; }
    if (this.asking) { this.again = true; return; }
    Object.assign(this, { seen: true, stale: false, asking: true });
    try {
      this.data = await this.load(this.span);
      if (!this.gone) this.draw();
    } catch (error) {
      if (!this.gone) fill(this.said, error.message);
    } finally {
      this.asking = false;
      if (this.again && !this.gone) { this.again = false; this.refresh(); }
    }
  }

  close() {
    this.gone = true;
    this.link.charts.delete(this);
    this.resize.disconnect();
    this.look.disconnect();
    removeEventListener("themechange", this.onTheme);
    this.plot?.destroy();
  }

  show(span) {
    this.span = span;
    this.reset.hidden = !span;
    this.refresh();
  }

  fit() {
    if (this.plot && this.box.clientWidth) this.plot.setSize({ width: this.box.clientWidth, height: this.height });
  }

  /** A drag begins. New data would take the plot away under the pointer, so it is drawn when the pointer is up again. */
  grab() {
    this.drags = true;
    const free = new AbortController();
    const end = () => {
      free.abort();
      setTimeout(() => { // uPlot hears of the end by the mouse event that follows the pointer's
        this.drags = false;
        if (this.late && !this.gone) this.draw();
      });
    };
    for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, end, { signal: free.signal });
  }

  draw() {
    const { data } = this;
    this.late = this.drags;
    if (!data || this.drags || !this.box.clientWidth) return;
    this.plot?.destroy();
    this.plot = null;
    const lines = data.lines.filter((line) => line.y.some((v) => v !== null));
    this.element.dataset.lines = lines.length;
    fill(this.said, lines.length ? this.legendOf(lines) : "nothing yet");
    if (!lines.length) return;
    const log = this.log();
    const above = (y) => (log ? y.map((v) => (v > 0 ? v : null)) : y);
    const columns = [data.x], series = [{}], bands = [];
    this.named = [null];
    const unnamed = (y, style) => {
      columns.push(above(y));
      series.push({ spanGaps: true, points: { show: false }, ...style });
      this.named.push(null);
    };
    for (const line of lines) {
      const ink = paint(line.color);
      if (line.low) {
        bands.push({ series: [columns.length, columns.length + 1], fill: `${ink}2a` });
        for (const y of [line.high, line.low]) unnamed(y, { stroke: "transparent", width: 0 });
      }
      for (const y of line.members ?? []) unnamed(y, { stroke: ink, width: 1, alpha: 0.45 });
      columns.push(above(line.y));
      series.push({ stroke: ink, width: line.faint ? 1 : 2, alpha: line.faint ? 0.5 : 1, spanGaps: true, dash: line.dash,
        points: { show: line.marks ? true : data.x.length < 3, size: 5, fill: ink } });
      this.named.push(line);
    }
    const ends = extent(lines.flatMap((l) => [l.y, ...(l.members ?? [])]).map(above));
    this.range = !log ? room(...ends) : ends[0] === null ? [0.1, 10] : uPlot.rangeLog(...ends, 10, true);
    this.plot = new uPlot(this.options(data, series, bands, log), columns, this.box);
    Object.assign(this.element.dataset, { low: this.range[0], high: this.range[1], ink: paint(lines[0].color) });
    this.box.setAttribute("aria-label", `${this.title}: ` + lines.slice(0, 4).map((l) => `${l.label} ${short(last(l.y))}`).join(", "));
  }

  legendOf(lines) {
    return this.legend && lines.length < 7 ? lines.map((l) => h("span", { class: "keyed" }, h("i", { class: "swatch", style: { background: l.color } }), l.label)) : "";
  }

  options(data, series, bands, log) {
    const ink = token("--soft"), grid = { stroke: token("--line"), width: 1 };
    const font = "12px system-ui, sans-serif", time = data.axis === "wall_s", many = series.length > NUM_FEW;
    const axis = { stroke: ink, grid, ticks: { stroke: token("--line"), width: 1, size: 4 }, font };
    return {
      width: this.box.clientWidth, height: this.height, series, bands, legend: { show: false }, padding: [8, 18, 0, 0],
      scales: { x: { time: false }, y: { distr: log ? 3 : 1, range: () => this.range } },
      axes: [
        { ...axis, size: 26, values: (u, ticks) => (time ? ticks.map(seconds) : labels(ticks)) },
        { ...axis, size: 52, values: (u, ticks) => labels(ticks) },
      ],
      focus: { alpha: 0.3 },
      cursor: { // fading all lines but the nearest redraws everything at each move, so it is done for few lines only
        sync: this.link.key ? { key: this.link.key, setSeries: false, scales: ["x", null] } : undefined, points: { size: 6, show: !many }, focus: { prox: many ? -1 : 24 },
        drag: { x: true, y: false, setScale: false },
        dataIdx: (u, i, at) => nearest(u.data[i], at),
      },
      hooks: {
        setSelect: [(u) => this.selected(u)],
        setCursor: [(u) => this.tell(u, data)],
      },
    };
  }

  selected(u) {
    const mine = this.drags && u.select.width >= 8; // linked charts get the event of a drag too, in their own pixels: only the chart that was dragged zooms
    if (!mine) { if (u.select.width) u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false); return; }
    const span = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.link.zoom(span);
  }

  tell(u, data) {
    const { left, top, idx } = u.cursor;
    if (idx === null || idx === undefined || left < 0 || !this.box.matches(":hover, :focus")) { this.tip.hidden = true; return; }
    const rows = [];
    this.named.forEach((line, i) => {
      if (!line) return;
      const at = nearest(u.data[i], idx), y = u.data[i][at];
      if (y !== null && y !== undefined) rows.push({ line, y, far: top < 0 ? i : Math.abs(u.valToPos(y, "y") - top) });
    });
    rows.sort((a, b) => a.far - b.far);
    const shown = rows.slice(0, NUM_NAMED).sort((a, b) => b.y - a.y);
    const place = data.axis === "wall_s" ? seconds(data.x[idx]) : `${compact(data.x[idx])} ${AXES[data.axis] ?? ""}`;
    fill(this.tip, h("div", { class: "soft" }, place), shown.map(({ line, y }) =>
      h("div", {}, h("i", { style: { background: line.color } }), h("b", {}, this.unit(y)), ` ${middle(line.label)}`)),
      rows.length > shown.length ? h("div", { class: "soft" }, `and ${rows.length - shown.length} more`) : null);
    this.tip.hidden = false;
    const room = this.element.clientWidth, width = this.tip.offsetWidth, x = left + 60;
    this.tip.style.left = `${Math.max(0, x + 16 + width > room ? x - width - 16 : x + 16)}px`;
  }

  key(event) {
    const u = this.plot;
    if (!u) return;
    if (event.key === "Escape") { this.link.zoom(null); return; }
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = Math.min(Math.max((u.cursor.idx ?? 0) + step * (event.shiftKey ? 20 : 1), 0), u.data[0].length - 1);
    u.setCursor({ left: u.valToPos(u.data[0][at], "x"), top: u.over.clientHeight / 2 });
  }
}

/** The smallest and the largest value of the lines. Bands do not count: a band of few seeds is so wide that lines would look flat. */
function extent(columns) {
  let low = null, high = null;
  for (const y of columns) for (const v of y) {
    if (v === null || v === undefined) continue;
    if (low === null || v < low) low = v;
    if (high === null || v > high) high = v;
  }
  return [low, high];
}

/** The range of an axis. A constant line lies in the middle; a line of zeros lies at the bottom. */
function room(low, high) {
  if (low === null || high === null) return [0, 1];
  if (low === high) return low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  return uPlot.rangeNum(low, high, 0.08, true);
}

function nearest(values, at) {
  for (let d = 0; d < 400; d++) {
    if (values[at - d] !== null && values[at - d] !== undefined) return at - d;
    if (values[at + d] !== null && values[at + d] !== undefined) return at + d;
  }
  return at;
}

function last(values) {
  for (let i = values.length - 1; i >= 0; i--) if (values[i] !== null) return values[i];
  return null;
}
