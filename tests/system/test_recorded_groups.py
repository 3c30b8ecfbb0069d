"""Groups of a run of a language model: recorded by the learner wherever it is, without a trace in what is learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_slices import content, settings

import runnel as rl


def groups(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "groups.jsonl").read_text().splitlines()]


def trained(out: Path, **extra: Any) -> Path:
    recipe, tiny = settings("grpo", **{"eval": {"episodes": 0}, **extra})
    return rl.train(recipe, out=str(out), **tiny).path


def test_a_run_learns_the_same_with_and_without_groups_and_a_resume_goes_on(tmp_path: Path) -> None:
    off = trained(tmp_path / "off", record={"groups_every": 0})
    assert not (off / "groups.jsonl").exists()
    on = trained(tmp_path / "on", total_updates=7)
    assert [g["version"] for g in groups(on)] == [4, 5, 6, 7], "from the first update on rollouts"
    with (on / "groups.jsonl").open("a") as file:
        file.write('{"version": 8, "of": "a past that is no more"}\n')
    rl.resume(on, total_updates=9)
    assert [g["version"] for g in groups(on)] == [4, 5, 6, 7, 8, 9]
    assert content(on)[1] == content(off)[1]
    rows = {r["version"]: r for r in (json.loads(line) for line in (on / "metrics.jsonl").open()) if r["kind"] == "update"}
    for group in groups(on):
        assert group["tokens"] == rows[group["version"]]["tokens"]
        assert (group["source"], len(group["rows"])) == ("letters", 4)
        assert all(set(row["versions"]) == {group["version"] - 1} for row in group["rows"])
        assert all(len(row["tokens"]) == len(row["ids"]) == len(row["logprob"]) for row in group["rows"])


def test_ranks_in_processes_of_their_own_send_whole_groups(tmp_path: Path) -> None:
    placement = {"threads": 1, "trainers": 2}
    run = trained(tmp_path, launcher="local", placement=placement, total_updates=6, record={"groups_every": 2})
    found = groups(run)
    assert [g["version"] for g in found] == [4, 6]
    assert all(len(g["rows"]) == 4 and g["prompt"] for g in found)


def test_pairs_are_recorded_too(tmp_path: Path) -> None:
    tiny = {"lm": {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "inner": 32}, "track": (), "name": "run"}
    run = rl.train("dpo", total_updates=2, num_pairs=4, eval={"episodes": 0}, out=str(tmp_path), **tiny).path
    assert [[row["label"] for row in g["rows"]] for g in groups(run)] == [["chosen", "rejected"]] * 2
    run = rl.train("kto", total_updates=2, num_pairs=4, eval={"episodes": 0}, out=str(tmp_path / "kto"), **tiny).path
    for own, other in (g["rows"] for g in groups(run)):
        assert (own["label"] in ("good", "bad"), other["label"]) == (True, "mismatched")
        assert (sum(own["mask"]) > 0, sum(other["mask"])) == (True, 0)
