import json
import math
import os
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from made_runs import made_run

from runnel.core.errors import ConfigError
from runnel.eval.statistics import mean_interval
from runnel.report.write import write_report
from runnel.track.folder import RunFolder
from runnel.track.history import across, load_history
from runnel.track.sinks import JsonlSink

EVIL = '</pre><script>alert("x")</script><img src=x onerror=alert(1)>'
VOID = {"meta", "br", "img", "link", "input"}


class Page(HTMLParser):
    """Tags with attributes, all text, text by section heading; fails on tags that do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.sections: dict[str, list[str]] = {}
        self.heading = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.heading = data
        elif data.strip() and "style" not in self.open:
            self.text.append(data)
            self.sections.setdefault(self.heading, []).append(data)

    def section(self, name: str) -> str:
        return "|".join(self.sections[name])

    def names(self) -> set[str]:
        return {tag for tag, _ in self.tags}


def make_run(root: Path, *, seed: int = 1, lr: float = 0.1, in_flight: int = 2, end: bool = True, num: int = 40) -> RunFolder:
    folder = RunFolder.create(root, f"ppo-CartPole-v1-{seed}")
    folder.write_config({"seed": seed, "env": "CartPole-v1", "ppo": {"lr": lr, "layers": [64, 64], "mask": None, "tag": EVIL}})
    created = datetime(2030, 1, 2)
    folder.write_run_info(
        recipe="ppo", subject="CartPole-v1", command=f"runnel train {EVIL}", seed=seed, created=created, graph="a ──▶ b"
    )
    sink = JsonlSink(folder.metrics)
    streams = {"trajectories": {"dispatched": 50, "consumed": 40, "dropped": {"stale": 5}, "cancelled": {"lost": 3}}}
    streams["trajectories"] |= {"in_flight": in_flight, "steps": 4000}
    for version in range(1, num + 1):
        sink.row(
            {
                "kind": "update",
                "version": version,
                "steps": version * 100,
                "metrics": {"loss/policy": 0.5, "kl": 0.01, "return": 10.0 * version + seed, EVIL: 1.0, "staleness/max": 1},
                "streams": streams,
                "time": {
                    "wall_s": version / 2,
                    "steps_per_s": 1000.0,
                    "stages": {"trainer/update": 0.3, "trainer/prepare": 0.1, "actor-0/env": 0.2},
                    "idle": {"trainer": 0.25},
                },
            }
        )
    sink.row(
        {"kind": "eval", "version": num, "steps": num * 100, "mean": 480.0 + seed, "low": 470.0, "high": 490.5, "num": 100}
    )
    sink.row({"kind": "event", "level": "warning", "text": EVIL, "time": {"wall_s": 3.0}})
    if end:
        sink.row({"kind": "end", "status": "finished", "streams": streams, "time": {"wall_s": 25.0, "train_s": 20.0}})
    sink.close()
    (folder.checkpoints / "000040").write_bytes(b"x" * 2500)
    return folder


def report(*folders: RunFolder) -> Page:
    return Page(write_report([folder.path for folder in folders]).read_text(encoding="utf-8"))


def test_the_report_of_one_run(tmp_path):
    folder = make_run(tmp_path)
    page = report(folder)
    head = page.section("")
    for part in (
        "ppo CartPole-v1",
        "finished",
        "481",
        "evaluation, 95 % interval 470 to 490.5, 100 episodes",
        "4,000",
        "25 s",
        "20 s",
    ):
        assert part in head, part
    learning = page.section("Learning")
    assert all(part in learning for part in ("Return", "loss/policy", "KL to the behaviour policy", "Staleness", "Steps/s"))
    assert "update 75% · 12 s|prepare 25% · 4 s" in page.section("Where the time goes")
    assert "waits 25%" in page.section("Where the time goes")
    assert page.section("Sample accounting").endswith("trajectories|50|40|5|stale 5|3|lost 3|2|4,000|✓ yes")
    assert "000040|2.5 kB" in page.section("How to run it again")
    assert "a ──▶ b" in page.section("How to run it again")
    assert "lr|0.1|layers|64, 64|mask|none" in page.section("Configuration")
    assert "numpy" in page.section("How to run it again")
    assert write_report([folder.path]) == folder.report


def test_the_report_of_a_language_model_shows_where_age_came_about(tmp_path):
    folder = RunFolder.create(tmp_path, "grpo-reverse-1")
    sink = JsonlSink(folder.metrics)
    ages = {"mean": 1.5, "max": 3, "in_flight": 1.0, "in_flight_max": 2, "in_queue": 0.5, "in_queue_max": 1}
    metrics = {f"staleness/{k}": v for k, v in ages.items()} | {"ess": 0.9, "version_span": 3.0, "mismatch/kl": 1e-6}
    account = {"dispatched": 9, "consumed": 3, "dropped": {}, "cancelled": {}, "in_flight": 6, "queued": 2, "steps": 30}
    for version in (1, 2, 3):
        sink.row({"kind": "update", "version": version, "metrics": metrics, "streams": {"rollouts": account}})
    sink.close()
    page = report(folder)
    shown = page.section("Learning")
    titles = ("Staleness (versions)", "Effective sample size (share)", "Versions inside a sample, at most")
    for part in (*titles, "Mismatch of engine and learner (KL)", "mean in flight", "mean in queue"):
        assert part in shown, part
    assert "6|in queue 2|30|✓ yes" in page.section("Sample accounting")


def test_nothing_is_executed_or_fetched(tmp_path):
    folder = make_run(tmp_path)
    sink = JsonlSink(folder.metrics)
    sample = {"prompt": EVIL, "completion": EVIL, "reward": 0.5}
    sink.row({"kind": "eval", "version": 41, "steps": 4100, "mean": 1.0, "samples": [sample]})
    sink.close()
    samples = JsonlSink(folder.samples)
    samples.row({**sample, "version": EVIL})
    samples.close()
    page = report(folder)
    assert page.names().isdisjoint({"script", "img", "link", "iframe", "object", "form"})
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes), tag
        assert "src" not in attributes
        assert not (attributes.get("href") or "").startswith(("http", "//", "javascript"))
    assert page.section("Completions").count(EVIL) == 5
    policy = [a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policy[0] is not None
    assert policy[0].startswith("default-src 'none'")


def test_half_a_character_does_not_stop_a_report(tmp_path):
    folder = make_run(tmp_path)
    samples = JsonlSink(folder.samples)
    samples.row({"prompt": "p", "completion": "a\udc80b", "reward": 0})
    samples.close()
    assert "a?b" in report(folder).section("Completions")


def test_accounting_that_does_not_add_up_is_a_warning(tmp_path):
    page = report(make_run(tmp_path, in_flight=9))
    assert "✗ -7 rows unaccounted for" in page.section("Sample accounting")
    assert "stream trajectories does not add up: -7 rows are unaccounted for" in page.section("")


def test_a_damaged_metrics_file_costs_only_its_damaged_lines(tmp_path):
    folder = make_run(tmp_path, end=False)
    lines = folder.metrics.read_bytes().splitlines(keepends=True)
    lines[5] = b"\xff\x00 not json\n"
    lines[6] = b'{"kind": "update", "version": "seven", "metrics": [1]}\n'
    lines[7] = b'{"kind": "update", "version": 8, "metrics": {"kl": "high"}, "streams": {"s": 3}}\n'
    folder.metrics.write_bytes(b"".join(lines) + b'{"kind": "upd')
    os.utime(folder.metrics, (1e9, 1e9))
    history = load_history(folder.path)
    assert len(history.updates) == 38
    page = report(folder)
    head = page.section("")
    assert "metrics.jsonl line 6 is not readable; skipped" in head
    assert "line 43 is not readable (cut off" in head
    assert "has the wrong shape" in head
    assert "killed" in head
    assert "481" in head


@pytest.mark.parametrize("content", [None, b"", b"\x00\x01"])
def test_a_run_without_metrics_still_has_a_report(tmp_path, content):
    folder = RunFolder.create(tmp_path, "run")
    folder.info.write_text("{broken" if content else json.dumps({"recipe": "ppo"}))
    if content is not None:
        folder.metrics.write_bytes(content)
    assert "no evaluation yet" in report(folder).section("")


def test_without_an_evaluation_the_headline_says_what_it_is(tmp_path):
    folder = make_run(tmp_path)
    rows = [line for line in folder.metrics.read_text().splitlines() if '"eval"' not in line]
    folder.metrics.write_text("\n".join(rows) + "\n")
    assert "last training return; no evaluation yet" in report(folder).section("")


def test_a_missing_run_names_the_path(tmp_path):
    with pytest.raises(ConfigError, match=r"run = .*nowhere"):
        write_report([tmp_path / "nowhere"])
    with pytest.raises(ConfigError, match="at least one"):
        write_report([])


def test_seeds_are_put_together_with_their_interval(tmp_path):
    runs = [make_run(tmp_path, seed=seed) for seed in (1, 2, 3)]
    write_report([runs[0].path])
    page = report(*runs)
    # evaluations 481, 482, 483: mean 482, standard error 1 / sqrt(3), t quantile 4.303 for 2 degrees of freedom
    half = 4.303 / math.sqrt(3)
    assert f"mean over 3 seeds, 95 % interval {482 - half:.1f} to {482 + half:.1f}" in page.section("")
    assert "ppo CartPole-v1, mean of 3: " in page.section("Learning")
    table = page.section("Runs")
    assert all(f"ppo-CartPole-v1-{seed}|finished|{seed}|{480 + seed}|470 to 490.5" in table for seed in (1, 2, 3))
    assert [a["href"] for t, a in page.tags if t == "a"] == ["ppo-CartPole-v1-1/report.html"]
    assert page.section("Sample accounting").count("✓ yes") == 3
    assert (tmp_path / "comparison.html").is_file()


def test_runs_with_other_settings_are_not_averaged(tmp_path):
    runs = [make_run(tmp_path, seed=1), make_run(tmp_path, seed=2), make_run(tmp_path, seed=3, lr=0.2)]
    out = write_report([run.path for run in runs], tmp_path / "deep" / "all.html")
    page = Page(out.read_text(encoding="utf-8"))
    learning = page.section("Learning")
    assert "ppo CartPole-v1 (ppo-CartPole-v1-1), mean of 2: " in learning
    assert "ppo CartPole-v1 (ppo-CartPole-v1-3): " in learning
    assert "(ppo-CartPole-v1-3): last evaluation" in page.section("").split("|")[-1]


def test_across_runs_against_numpy():
    x = np.arange(11.0)
    grid, mean, low, high = across([(x, x), (x[:6], x[:6] * 3)], num_points=6)
    assert grid.tolist() == [0, 1, 2, 3, 4, 5]
    np.testing.assert_allclose(mean, 2 * grid)
    # two values v and 3v: standard deviation sqrt(2) v, error v, quantile 12.706
    np.testing.assert_allclose(high - mean, 12.7062047 * grid)
    np.testing.assert_allclose(mean - low, 12.7062047 * grid)


def test_one_run_has_no_interval():
    mean, half = mean_interval(np.array([[4.0, 5.0]]))
    assert mean.tolist() == [4.0, 5.0]
    assert half.tolist() == [0.0, 0.0]


def test_runs_that_count_steps_and_updates_are_drawn_over_updates(tmp_path):
    """A language model counts tokens and updates: its version is not a step."""
    folders = []
    for name, steps in (("env", 100), ("words", 0)):
        folder = RunFolder.create(tmp_path, name)
        folder.info.write_text(json.dumps({"recipe": name}))
        rows = [{"kind": "update", "version": v, "steps": v * steps, "metrics": {"return": float(v)}} for v in (1, 2, 3)]
        folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
        folders.append(folder.path)
    for order in (folders, folders[::-1]):
        page = write_report(order, tmp_path / "page.html").read_text()
        assert ">updates</text>" in page
        assert ">steps</text>" not in page
        with (tmp_path / "page_csv" / "curves.csv").open() as file:
            positions = {float(line.split(",")[2]) for line in file.read().splitlines()[1:]}
        assert positions <= {1.0, 2.0, 3.0}


def test_changes_of_settings_are_marked_in_every_picture(tmp_path):
    """A dashed line at the steps at which each value began, and the list below the large picture."""
    run = made_run(tmp_path, 100.0)
    sink = JsonlSink(run.metrics)
    updates = [r for r in run.read_rows()[0] if r["kind"] == "update"]
    at = updates[len(updates) // 2]
    event = {"kind": "event", "level": "info", "what": "setting", "text": "", "time": {"wall_s": 1.0}}
    plain = write_report([run.path])
    assert 'class="moment"' not in Path(plain).read_text()
    sink.row({**event, "version": at["version"], "name": "ppo.lr", "value": 1e-4})
    sink.row({**event, "version": "?", "name": "ppo.lr", "value": 2e-4})  # damaged
    sink.close()
    assert load_history(run.path).changes == [(at["steps"], "ppo.lr = 0.0001")]
    html = Path(write_report([run.path])).read_text()
    charts, marks = html.count('<svg class="chart"'), html.count('class="moment"')
    assert charts == marks > 0
    assert f"Dashed: changes of settings. steps {at['steps']:,}: ppo.lr = 0.0001" in html
