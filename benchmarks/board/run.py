"""How the board holds up under many long runs: `python -m benchmarks.board.run --runs 200 --rows 100000`.

Reports seconds until the table answers (from samples of each file), until every file is parsed, the same after a second start
(from the cache), the time of an answer with all curves, and in headless Chromium the frames while one moves over a chart.
No peer here: the limit is a person's patience (0.1 s feels instant, 1 s keeps the thread; Nielsen 1993).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.board.made_runs import make_runs

FRAMES = """() => new Promise((done) => { const gaps = []; let last = performance.now(); const end = last + 4000;
  const tick = (now) => { gaps.push(now - last); last = now; if (now < end) requestAnimationFrame(tick); else done(gaps); };
  requestAnimationFrame(tick); })"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="made runs to use again; made there if it does not exist")
    parser.add_argument("--browser", default="/usr/bin/chromium")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch) / "runs"
        if not folder.exists():
            make_runs(folder, num_runs=args.runs, num_rows=args.rows)
        env = os.environ | {"XDG_CACHE_HOME": f"{scratch}/cache"}
        print(f"{args.runs} runs of {args.rows:,} rows, {sum(p.stat().st_size for p in folder.rglob('*.jsonl')) / 1e9:.1f} GB")
        print("first start")
        measure(folder, env, args)
        print("second start, from the cache")
        measure(folder, env, args)


def measure(folder: Path, env: dict[str, str], args: argparse.Namespace) -> None:
    began = time.perf_counter()
    server = subprocess.Popen(
        [sys.executable, "-m", "runnel", "board", str(folder), "--port", "0"], env=env, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        address = next(line for line in server.stdout if line.startswith("open ")).split()[1].rstrip("/")
        runs = ask(f"{address}/api/runs")["runs"]
        print(f"  table of {len(runs)} runs after {time.perf_counter() - began:.1f} s")
        report_answers(
            address, [run["id"] for run in runs], "while files are parsed" if any(r["rough"] for r in runs) else "at once"
        )
        while any(run["rough"] for run in ask(f"{address}/api/runs")["runs"]):
            time.sleep(2.0)
        print(f"  every row parsed after {time.perf_counter() - began:.0f} s")
        report_answers(address, [run["id"] for run in runs], "all rows")
        report_frames(address, args.browser)
    finally:
        server.terminate()
        server.wait()


def report_answers(address: str, ids: list[str], when: str) -> None:
    for words, settings in (("each run", {}), ("smoothed", {"smoothing": 0.9}), ("mean over seeds", {"group": True})):
        times, size = [], 0
        for _ in range(5):
            start = time.perf_counter()
            body = {"runs": ids, "metrics": ["return"], "axis": "steps", **settings}
            size = len(raw(f"{address}/api/curves", body))
            times.append(time.perf_counter() - start)
        print(f"  {when}: {words}: {statistics.median(times) * 1e3:.0f} ms (worst {max(times) * 1e3:.0f}), {size / 1e6:.2f} MB")
    start = time.perf_counter()
    raw(f"{address}/api/runs", None)
    print(f"  {when}: the table: {(time.perf_counter() - start) * 1e3:.0f} ms")


def report_frames(address: str, browser: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page(viewport={"width": 1400, "height": 900})
        start = time.perf_counter()
        page.goto(address)
        page.get_by_role("button", name="each run").click()
        page.wait_for_selector("figure[data-lines] canvas")
        print(f"  page with curves after {time.perf_counter() - start:.1f} s")
        page.wait_for_timeout(1500)
        box = page.locator("figure canvas").first.bounding_box()
        assert box is not None
        page.evaluate(f"() => {{ window.gaps = ({FRAMES})(); }}")
        for i in range(60):
            page.mouse.move(box["x"] + 60 + (box["width"] - 80) * i / 60, box["y"] + 60)
        page.mouse.wheel(0, 600)
        gaps = page.evaluate("() => window.gaps")
        middle, most = statistics.median(gaps), sorted(gaps)[int(0.95 * len(gaps))]
        print(f"  frames while moving: median {middle:.0f} ms, 95 % {most:.0f} ms, worst {max(gaps):.0f} ms")
        chromium.close()


def ask(url: str) -> dict[str, Any]:
    return dict(json.loads(raw(url, None)))


def raw(url: str, body: dict[str, Any] | None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"content-type": "application/json"} if body else {})
    with urllib.request.urlopen(request) as answer:
        return bytes(answer.read())


if __name__ == "__main__":
    main()
