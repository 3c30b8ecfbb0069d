// Recorded episodes as videos with their rewards, and histograms of returns and lengths.

import { h, fill, short, whole, percent, notice } from "./dom.js";
import { get } from "./api.js";

export class Episodes {
  constructor(id) {
    this.id = id;
    this.list = h("div", { class: "reel" });
    this.stage = h("div", { class: "stage" });
    this.spread = h("div", { class: "grid" });
    this.notes = h("div", {});
    this.tables = h("div", {});
    this.element = h("div", {}, this.notes, this.stage, this.list, h("h2", {}, "Last evaluation"), this.spread, this.tables);
  }

  async update(d) {
    const { returns, lengths } = d.returns;
    fill(this.spread, returns?.length ? histogram("Return", returns) : h("p", { class: "soft" }, "No evaluation yet."), lengths?.length ? histogram("Length", lengths) : null);
    fill(this.tables, d.tables.map(resultTable));
    if (!d.has.episodes) {
      fill(this.notes, h("p", { class: "soft" }, "No episodes were recorded. Train with ", h("code", {}, "--record.videos 2"), ", or record the trained policy: ", h("code", {}, `runnel record ${d.path}`)));
      return;
    }
    try {
      const found = await get("/api/episodes", { run: this.id });
      fill(this.notes, notice(found.problems));
      this.draw(found.episodes);
    } catch (error) {
      fill(this.notes, notice([error.message], "bad"));
    }
  }

  draw(episodes) {
    const key = episodes.map((e) => e.file).join();
    if (key === this.drawn) return;
    this.drawn = key;
    fill(this.list, episodes.map((e) => h("button", { class: "film", "data-file": e.file, onclick: () => this.open(e) },
      h("b", {}, `return ${short(e.return)}`), h("span", { class: "soft small" }, `version ${whole(e.version)} · ${whole(e.length)} steps`))));
    if (episodes.length && !this.opened) this.open(episodes[0]);
  }

  open(e) {
    this.opened = e;
    const video = h("video", { src: `/video?${new URLSearchParams({ run: this.id, file: e.file })}`, controls: true, loop: true, muted: true, playsinline: true, preload: "metadata", "aria-label": `episode of version ${e.version}` });
    video.muted = true;
    const mark = h("line", { class: "mark", x1: 0, x2: 0, y1: 0, y2: 60 });
    const fps = e.fps || 30, steps = Math.max((e.rewards ?? []).length, 1);
    video.addEventListener("timeupdate", () => { const x = (600 * Math.min(video.currentTime * fps, steps)) / steps; mark.setAttribute("x1", x); mark.setAttribute("x2", x); });
    video.addEventListener("error", () => fill(this.notes, notice([`This browser cannot play ${e.file}.`], "bad")));
    fill(this.stage, video, h("div", {}, h("p", {}, h("b", {}, `version ${whole(e.version)}`), ` · return ${short(e.return)} · ${whole(e.length)} steps · seed ${e.seed}${e.truncated ? " · cut at its limit" : ""}`),
      e.rewards?.length ? h("svg", { class: "rewards", viewBox: "0 0 600 60", preserveAspectRatio: "none", role: "img", "aria-label": "reward by step" }, total(e.rewards), mark) : null,
      e.rewards?.length ? h("p", { class: "soft small" }, "sum of rewards so far") : null));
    this.list.querySelectorAll(".film").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.file === e.file)));
  }
}

function total(rewards) {
  let sum = 0;
  const sums = rewards.map((r) => (sum += r)), low = Math.min(0, ...sums), high = Math.max(0, ...sums), span = high - low || 1;
  const points = sums.map((s, i) => `${((600 * (i + 1)) / sums.length).toFixed(1)},${(58 - (56 * (s - low)) / span).toFixed(1)}`);
  return h("polyline", { points: `0,${58 - (56 * (0 - low)) / span} ${points.join(" ")}` });
}

/** A table of an evaluation (pay-offs, scores by turn): the higher a value, the stronger its cell. */
export function resultTable({ title, rows, columns, values }) {
  const known = values.flat().filter((v) => v !== null), low = Math.min(...known), span = Math.max(...known) - low || 1;
  const shade = (v) => (v === null ? {} : { background: `color-mix(in srgb, var(--c0) ${Math.round((55 * (v - low)) / span)}%, transparent)` });
  return h("figure", { class: "result" }, h("figcaption", {}, h("b", {}, title)), h("table", {},
    h("thead", {}, h("tr", {}, h("th", {}), columns.map((c) => h("th", { scope: "col" }, c)))),
    h("tbody", {}, rows.map((name, i) => h("tr", {}, h("th", { scope: "row" }, name), values[i].map((v) => h("td", { class: "n", style: shade(v) }, short(v))))))));
}

/** How often values of each size occur. */
export function histogram(title, values) {
  const low = Math.min(...values), high = Math.max(...values), num = low === high ? 1 : Math.min(20, Math.max(5, Math.ceil(Math.sqrt(values.length))));
  const counts = new Array(num).fill(0);
  values.forEach((v) => { counts[Math.min(num - 1, Math.floor(((v - low) / (high - low || 1)) * num))] += 1; });
  const most = Math.max(...counts), width = 360 / num;
  const bars = counts.map((c, i) => h("rect", { class: "histbar", x: i * width + 1, y: 100 - (96 * c) / most, width: Math.max(width - 2, 1), height: (96 * c) / most }));
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  return h("figure", {}, h("figcaption", {}, h("b", {}, title), h("span", { class: "soft small" }, ` mean ${short(mean)}, ${whole(values.length)} episodes, fullest bin ${percent(most / values.length)}`)),
    h("svg", { viewBox: "0 0 360 120", class: "hist", role: "img", "aria-label": `${title}: from ${short(low)} to ${short(high)}, mean ${short(mean)}` }, bars,
      h("text", { x: 0, y: 115 }, short(low)), h("text", { x: 360, y: 115, class: "end" }, short(high))));
}
