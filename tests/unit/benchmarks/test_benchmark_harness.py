"""The benchmark harness without peers: ratio maths, load, turns, failures, and the files of a result."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks import harness, machine, results, venvs
from benchmarks.classic import clock
from benchmarks.harness import Entry, Measure, Options, Recorded, Side

EAGER = Options(idle_limit_s=0.0, idle_cores=1e9, sample_s=0.02)
PRINTS_SEED = """
import json, sys
seed = int(sys.argv[sys.argv.index("--seed") + 1])
print("noise before the answer")
print(json.dumps({"speed": FACTOR * seed, "cores": 1.0}))
"""


def entry(tmp_path: Path, scripts: dict[str, str], *, repeats: int = 3) -> Entry:
    sides = []
    for name, text in scripts.items():
        (tmp_path / f"{name}.py").write_text(text)
        sides.append(Side(name, tmp_path / f"{name}.py", ()))
    measure = Measure("speed", "Speed", "speed", "steps/s", True, (), repeats, 20.0, ("speed", "cores"))
    return Entry("toy", "A toy", tuple(sides), (measure,), ("a note",))


def play(e: Entry, problems: dict[str, str] | None = None) -> dict:
    pythons = {s.name: Path(sys.executable) for s in e.sides if s.name not in (problems or {})}
    runs = harness.take_turns(e, e.measures[0], pythons, EAGER)
    measure = harness.compare_sides(e, e.measures[0], runs, problems or {})
    return {
        "entry": e.name,
        "title": e.title,
        "made": "2030-01-01",
        "machine": {"cores": 2, "cpu": "a cpu", "memory_gib": 1.0},
        "code": {"commit": "abc", "dirty": False},
        "versions": {},
        "packages": [],
        "measures": [measure],
        "notes": list(e.notes),
        "warnings": harness.collect_warnings([measure]),
    }


def test_ratio_is_of_medians_and_above_one_when_ours_is_better():
    more = results.compare([10.0, 30.0, 20.0], [5.0, 10.0, 20.0], more_is_better=True)
    assert (more["ratio"], more["low"], more["high"]) == (2.0, 1.0, 3.0)
    less = results.compare([10.0, 30.0, 20.0], [5.0, 10.0, 20.0], more_is_better=False)
    assert less["ratio"] == 0.5
    assert less["pairs"] == pytest.approx([0.5, 1 / 3, 1.0])


def test_not_solved_counts_as_worst_and_never_vanishes():
    assert results.middle([10.0, None, 30.0], more_is_better=False) == 30.0
    assert results.middle([10.0, None, None], more_is_better=False) is None
    assert results.middle([10.0, None, 30.0], more_is_better=True) == 10.0
    compared = results.compare([10.0, 20.0, 30.0], [None, None, 5.0], more_is_better=False)
    assert compared["ratio"] is None
    assert compared["pairs"] == [None, None, pytest.approx(1 / 6)]
    assert results.summarise([None, 4.0], more_is_better=False) == {
        "median": None,
        "min": 4.0,
        "max": 4.0,
        "num": 2,
        "num_known": 1,
    }


def test_busy_cores_by_hand():
    before = machine.parse_stat("cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1 2 3")
    after = machine.parse_stat("cpu  160 0 70 1060 70 0 0 0 9 0")
    assert (before.total, before.idle) == (1000, 850)
    # 360 ticks of two cores went by, 280 of them idle
    assert machine.busy_cores(before, after, num_cores=2) == pytest.approx(2 * 80 / 360)


def test_wait_ends_when_idle_or_at_its_limit_with_a_warning():
    loads, clock_ = iter([1.5, 0.9, 0.1]), iter([0.0, 1.0, 2.0, 3.0])
    idle = machine.wait_idle(10.0, sample=lambda: next(loads), now=lambda: next(clock_))
    assert (idle.load, idle.waited_s, idle.warning) == (0.1, 3.0, "")
    ticks = iter([0.0, 2.0, 4.0])
    busy = machine.wait_idle(3.0, sample=lambda: 1.5, now=lambda: next(ticks))
    assert busy.waited_s == 4.0
    assert "1.50 cores" in busy.warning
    assert "unknown" in machine.wait_idle(3.0, sample=lambda: None).warning


def test_turns_alternate_and_the_result_holds_every_run(tmp_path, capsys):
    scripts = {"runnel": PRINTS_SEED.replace("FACTOR", "30"), "peer": PRINTS_SEED.replace("FACTOR", "10")}
    result = play(entry(tmp_path, scripts))
    lines = [line.split(":")[0] for line in capsys.readouterr().err.splitlines()]
    assert lines == [f"speed {i}/3 {name}" for i in (1, 2, 3) for name in ("runnel", "peer")]
    measure = result["measures"][0]
    assert [r["speed"] for r in measure["sides"]["runnel"]["runs"]] == [30, 60, 90]
    assert measure["ratios"]["peer"]["ratio"] == 3.0
    assert {"load_before", "others", "waited_s", "seed"} <= set(measure["sides"]["peer"]["runs"][0])


def test_files_of_a_result_can_be_read(tmp_path):
    scripts = {"runnel": PRINTS_SEED.replace("FACTOR", "30"), "peer": PRINTS_SEED.replace("FACTOR", "10")}
    result = play(entry(tmp_path, scripts, repeats=1))
    harness.write(result, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == json.loads(json.dumps(result))
    page = (tmp_path / "out" / "table.md").read_text()
    assert "| peer | 10.0 | 10.0 - 10.0 | 1 | **3.00x** |" in page
    assert "- a note" in page
    svg = ElementTree.parse(tmp_path / "out" / "ratios.svg").getroot()
    assert svg.tag.endswith("svg")
    assert "3.00x" in "".join(svg.itertext())


def test_a_disturbed_ratio_is_never_shown_as_a_result(tmp_path):
    e = entry(tmp_path, {"runnel": "", "peer": ""})
    row = {"speed": 4.0, "seed": 1, "warnings": []}
    runs = {"runnel": [row], "peer": [{**row, "speed": 1.0, "warnings": ["1.50 cores were busy with something else"]}]}
    measure = harness.compare_sides(e, e.measures[0], runs, {})
    assert measure["ratios"]["peer"]["disturbed"]
    assert "(4.00x, disturbed)" in results.measure_table(measure)
    assert "**4.00x**" not in results.measure_table(measure)
    assert "4.00?" in results.ratio_chart("t", [("Speed", measure["ratios"]["peer"])])


def test_a_peer_that_fails_or_does_not_install_is_reported_and_the_run_goes_on(tmp_path):
    good = PRINTS_SEED.replace("FACTOR", "30")
    e = entry(tmp_path, {"runnel": good, "broken": "raise SystemExit('no such game')", "absent": good}, repeats=1)
    result = play(e, {"absent": "not installed: no matching distribution"})
    sides = result["measures"][0]["sides"]
    assert sides["runnel"]["problem"] == ""
    assert sides["broken"]["problem"] == "failed: exit code 1: no such game"
    assert result["measures"][0]["ratios"]["absent"]["ratio"] is None
    harness.write(result, tmp_path / "out")
    assert "not installed: no matching distribution" in (tmp_path / "out" / "table.md").read_text()
    assert any("no such game" in line for line in result["warnings"])


def test_a_measurement_past_its_limit_is_an_error(tmp_path):
    (tmp_path / "slow.py").write_text("import time; time.sleep(60)")
    assert harness.run_once(sys.executable, tmp_path / "slow.py", [], limit_s=0.2) == {"error": "no answer within 0.2 s"}


def test_install_runs_once_for_one_request_and_names_what_pip_said(tmp_path, monkeypatch):
    calls = []
    (tmp_path / ".venv-x" / "bin").mkdir(parents=True)
    (tmp_path / ".venv-x" / "bin" / "python").touch()
    monkeypatch.setattr(venvs, "_call", lambda command, root: calls.append(command))
    for requirements in (("a==1",), ("a==1",), ("a==2",)):
        venvs.ensure("x", requirements, root=tmp_path)
    assert [c[-1] for c in calls] == ["a==1", "a==2"]
    monkeypatch.undo()
    script = "import sys; sys.stderr.write('ERROR: first\\nERROR: No matching distribution\\nnotice\\n'); sys.exit(1)"
    with pytest.raises(venvs.InstallError, match=r"^No matching distribution$"):
        venvs._call([sys.executable, "-c", script], tmp_path)


def test_window_counts_whole_updates_after_the_warm_up(monkeypatch):
    now = iter([1.0, 2.5, 3.5, 5.0])
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(clock, "cpu_seconds", lambda: 0.0)
    watch = clock.WindowWatch(0.0, warmup_s=2.0, window_s=2.0)
    assert [watch.update(steps) for steps in (100, 200, 300, 400)] == [True, True, True, False]
    # from the update at 2.5 s (200 steps) to the one at 5 s (400 steps)
    assert watch.answer() == {"steps_per_s": 80.0, "steps": 200, "seconds": 2.5, "cores": 0.0}


def test_window_waits_for_its_steps_too(monkeypatch):
    now = iter([3.0, 4.0, 7.0])
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(clock, "cpu_seconds", lambda: 0.0)
    watch = clock.WindowWatch(0.0, warmup_s=1.0, window_s=2.0, warmup_steps=500)
    assert [watch.update(steps) for steps in (400, 600, 900)] == [True, True, False]
    assert watch.answer()["steps_per_s"] == 100.0


def test_the_work_of_children_is_counted():
    busy = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    before = clock.cpu_seconds()
    subprocess.run([sys.executable, "-c", busy], check=True)
    assert clock.cpu_seconds() - before >= 0.25


def test_a_recorded_figure_is_scaled_by_its_anchor(tmp_path):
    scripts = {"runnel": PRINTS_SEED.replace("FACTOR", "30"), "peer": PRINTS_SEED.replace("FACTOR", "10")}
    e = entry(tmp_path, scripts, repeats=1)
    records = (
        Recorded("absent", 40.0, "peer", 20.0, "on another day"),
        Recorded("other", 60.0),
        Recorded("lost", 1.0, "gone", 1.0),
    )
    e = replace(e, measures=(replace(e.measures[0], recorded=records, must=2.0, aim=4.0),))
    result = play(e)
    scaled, unscaled, lost = result["measures"][0]["recorded"]
    # the peer gives 10 where it gave 20: 40 becomes 20, and runnel's 30 is 1.5 times that
    assert (scaled["scaled"], scaled["ratio"]) == (20.0, 1.5)
    assert (unscaled["scaled"], unscaled["ratio"]) == (60.0, 0.5)
    assert (lost["scaled"], lost["ratio"]) == (None, None)
    page = results.markdown(result)
    assert "| absent (recorded, scaled by peer) | 20.0 |" in page
    assert "Asked for: 2x the fastest peer, aim 4x. Least ratio: **0.50x**." in page
    assert "- absent: 40.0 steps/s recorded, when peer had 20.0. on another day" in page


def test_a_measure_may_leave_sides_out_and_has_the_last_word_on_settings(tmp_path):
    tells = "import json, sys; print(json.dumps({'speed': 1.0, 'argv': sys.argv[1:]}))"
    e = entry(tmp_path, {"runnel": tells, "peer": tells}, repeats=1)
    sides = tuple(replace(s, arguments=("--num-envs", "8")) for s in e.sides)
    e = replace(e, sides=sides, measures=(replace(e.measures[0], arguments=("--num-envs", "64"), sides=("runnel",)),))
    measure = play(e)["measures"][0]
    assert list(measure["sides"]) == ["runnel"]
    assert measure["ratios"] == {}
    (run,) = measure["sides"]["runnel"]["runs"]
    assert run["argv"] == ["--num-envs", "8", "--num-envs", "64", "--seed", "1"]
    assert run["command"].endswith("runnel.py --num-envs 8 --num-envs 64 --seed 1")


def test_a_version_that_a_peer_needs_wins_over_the_constraint():
    kept = venvs.constraints_for(("torch", "sample-factory==2.1.1", "gymnasium==0.29.1"))
    assert "gymnasium" not in kept
    assert "torch==2.13.0" in kept
    assert venvs.constraints_for(("gymnasium[mujoco]",)) == venvs.CONSTRAINTS.read_text()


def test_solved_needs_a_hundred_episodes(monkeypatch):
    watch = clock.SolveWatch(0.0)
    for _ in range(99):
        watch.episode(500.0)
    assert watch.update(10)
    assert watch.answer()["solve_s"] is None
    watch.episode(474.0)
    assert not watch.update(20)
    assert watch.answer()["solve_steps"] == 20
    watch.episode(0.0)
    assert watch.answer()["mean_return"] == pytest.approx((99 * 500 + 474) / 100)
