// Settings side by side: those that differ between the runs, and the difference of two runs.

import { h, fill, short, value, notice, pill } from "./dom.js";
import { get, post } from "./api.js";

export class Settings {
  constructor(root, runs) {
    Object.assign(this, { root, runs, sort: null });
    this.load();
  }

  async load() {
    try {
      this.found = await post("/api/configs", { runs: this.runs.map((r) => r.id) });
      this.draw();
    } catch (error) {
      fill(this.root, notice([error.message], "bad"));
    }
  }

  draw() {
    const { varied, num_same: same, rows } = this.found;
    const names = varied.filter((n) => !["out", "name"].includes(n));
    const score = (r) => r.eval?.mean ?? r.score;
    const cells = this.runs.map((run) => ({ run, cells: names.map((n) => rows[run.id]?.[n]), score: score(run) }));
    const by = this.sort ?? ["score", -1];
    const key = (row) => (by[0] === "score" ? row.score ?? -Infinity : row.cells[names.indexOf(by[0])] ?? "");
    cells.sort((a, b) => { const x = key(a), y = key(b); return (x < y ? -1 : x > y ? 1 : 0) * by[1]; });
    const head = (name, label) => h("th", { class: name === "score" ? "n" : "" }, h("button", { class: "head", onclick: () => {
      this.sort = [name, by[0] === name ? -by[1] : 1];
      this.draw();
    } }, label, by[0] === name ? (by[1] > 0 ? " ↑" : " ↓") : ""));
    fill(this.root,
      h("p", { class: "soft small" }, names.length ? `${names.length} settings are not the same in these runs; ${same} are.` : `All ${same} settings are the same in these runs.`),
      h("div", { class: "scroll" }, h("table", { id: "settings" },
        h("thead", {}, h("tr", {}, h("th", {}, "run"), h("th", {}, "status"), head("score", "score"), names.map((n) => head(n, n)))),
        h("tbody", {}, cells.map(({ run, cells: found, score: s }) => h("tr", {},
          h("td", { class: "name" }, h("a", { href: `#/run/${encodeURIComponent(run.id)}` }, run.name)), h("td", {}, pill(run.status)),
          h("td", { class: "n" }, short(s)), found.map((v) => h("td", { class: "setting" }, value(v)))))))));
  }
}

export class Difference {
  constructor(root, [a, b]) {
    Object.assign(this, { root, a, b });
    this.load();
  }

  async load() {
    const { a, b } = this;
    try {
      const found = await get("/api/compare", { a: a.id, b: b.id });
      const rows = (list) => list.map((d) => h("tr", {}, h("td", {}, d.name), h("td", { class: "setting old" }, value(d.a)), h("td", { class: "setting new" }, value(d.b))));
      const score = (r) => `${short(r.eval?.mean ?? r.score)}${r.eval ? ` (${short(r.eval.low)} to ${short(r.eval.high)})` : ""}`;
      const moved = found.commits[0] !== found.commits[1];
      fill(this.root, h("p", { class: "soft small" }, found.config.length ? `${found.config.length} settings differ, ${found.num_same} are the same.` : "These runs have the same settings."),
        h("div", { class: "scroll" }, h("table", { id: "difference" },
          h("thead", {}, h("tr", {}, h("th", {}, "setting"), h("th", {}, a.name), h("th", {}, b.name))),
          h("tbody", {}, h("tr", {}, h("td", {}, "score"), h("td", {}, score(a)), h("td", {}, score(b))), rows(found.config),
            moved ? rows([{ name: "git commit", a: found.commits[0].slice(0, 10), b: found.commits[1].slice(0, 10) }]) : null,
            found.versions.length ? [h("tr", {}, h("th", { colspan: 3 }, "versions of packages")), rows(found.versions)] : null))));
    } catch (error) {
      fill(this.root, notice([error.message], "bad"));
    }
  }
}
