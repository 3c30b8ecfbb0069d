"""Agents that follow a policy of a stored run: it acts and never changes, what was chosen is kept, and what is gone is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_team_runs import TEAM, content, params

import runnel as rl
from runnel.core.stored_policy import parse_stored
from runnel.run.stored import stored_params


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of both policies."""
    return rl.train("ippo", out=str(tmp_path_factory.mktemp("first")), **{**TEAM, "name": "first"}).path


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    stored_params.cache_clear()
    yield
    stored_params.cache_clear()


def against(first: Path, which: str = "@newest#receiver", **more: Any) -> dict[str, Any]:
    return {**TEAM, "teams": ("sender=sender", f"receiver=run:{first}{which}"), **more}


def test_a_stored_policy_acts_and_what_was_chosen_is_in_the_settings(first: Path, tmp_path: Path) -> None:
    run = rl.train("ippo", out=str(tmp_path), **against(first))
    (_, chosen) = json.loads((run.path / "config.json").read_text())["teams"]
    policy = parse_stored(chosen.partition("=")[2])
    assert (policy.folder, policy.which, policy.member) == (str(first.resolve()), "8", "receiver")
    assert len(policy.checksum) == 12
    assert any(f"follow version 8 of {first.resolve()}, which never changes" in row["text"] for row in run.rows("event"))
    assert {name.partition("/")[0] for name in load_file(params(run))} == {"sender"}
    assert set(run.rows("end")[-1]["streams"]) == {"sender"}
    metrics = run.rows()[-1]["metrics"]
    assert metrics["return"] == metrics["return/sender"]
    assert "return/first@8.receiver" in metrics
    policies = rl.load(run.path)
    theirs = rl.load(first)
    obs = {"receiver": torch.eye(3)[1].numpy()}
    assert policies.act(obs) == theirs.act(obs)


@pytest.mark.parametrize("more", [{"launcher": "local"}, {"placement": {"policy_workers": 1}}], ids=["local", "policy workers"])
def test_every_launcher_gives_the_same_and_a_resume_goes_on(first: Path, more: dict[str, Any], tmp_path: Path) -> None:
    whole = rl.train("ippo", out=str(tmp_path / "whole"), **against(first))
    assert content(rl.train("ippo", out=str(tmp_path / "other"), **against(first, **more))) == content(whole)
    stopped = rl.train("ippo", out=str(tmp_path / "b"), on_update=lambda row: row["version"] < 4, **against(first))
    assert content(rl.resume(stopped.path)) == content(whole)


def test_a_resume_refuses_other_parameters_and_missing_ones(first: Path, tmp_path: Path) -> None:
    there = tmp_path / "first"
    shutil.copytree(first, there)
    run = rl.train(
        "ippo", out=str(tmp_path / "runs"), on_update=lambda row: row["version"] < 4, **against(there, "@best#receiver")
    )
    stored_params.cache_clear()
    shutil.rmtree(there)
    with pytest.raises(rl.ConfigError, match="there is no such folder"):
        rl.resume(run.path)
    again = {**TEAM, "name": "first", "seed": 9}
    rl.train("ippo", out=str(tmp_path), **again)
    with pytest.raises(rl.ConfigError, match="is not what it was when this run began"):
        rl.resume(run.path)


def test_a_damaged_file_is_told(first: Path, tmp_path: Path) -> None:
    there = tmp_path / "first"
    shutil.copytree(first, there)
    for path in there.glob("**/params.safetensors"):
        save_file({"sender/x": torch.zeros(1)}, path)
    with pytest.raises(rl.ConfigError, match="is damaged"):
        rl.train("ippo", out=str(tmp_path / "runs"), **against(there, "@8#receiver"))


@pytest.mark.parametrize(
    ("which", "more", "text"),
    [
        ("@newest", {}, r"has several policies \(receiver, sender\); say which: run:.*#receiver"),
        ("@best#judge", {}, "has no policy 'judge'; it has receiver, sender"),
        ("@7#receiver", {}, "keeps no version 7; it has"),
        ("@oldest", {}, "there is no such folder"),
        ("@newest[win_rate=0.9..0.1]#sender", {}, "holds for nothing; write the lower number first"),
        ("@newest[win_rate>0.5]#sender", {}, r"'win_rate>0.5' is not understood; in brackets stand NAME=LOW..HIGH"),
        ("@newest[elo=3..]#receiver", {}, "no kept version has a 'elo'; what is known of them: .*length, .*return, .*win_rate"),
        ("@newest[return=90..]#receiver", {}, r"no kept version answers this; the nearest are version \d of .* \(return"),
        ("@newest[tag=strong]#receiver", {}, "no kept version answers this; the nearest are version 3"),
        ("@8[return=0..]#receiver", {}, "a number says already which version"),
        ("*x@newest[return=0..]#receiver", {}, "no folder of a run has such a name"),
        ("@newest[return=0..]", {}, r"has several policies \(receiver, sender\); say which"),
        ("#sender", {}, "its parameters do not fit these agents"),
        ("#receiver", {"net": {"hidden": (9,)}}, "use a run of the same recipe, with its settings of `net`"),
    ],
)
def test_a_query_that_no_policy_answers_is_refused(
    first: Path, which: str, more: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(rl.ConfigError, match=text):
        rl.train("ippo", out=str(tmp_path), **against(first, which, **more))
    assert not list(tmp_path.iterdir())


def test_a_team_of_stored_policies_alone_is_refused(first: Path, tmp_path: Path) -> None:
    teams = (f"sender=run:{first}#sender", f"receiver=run:{first}#receiver")
    with pytest.raises(rl.ConfigError, match="none of these policies is trained"):
        rl.train("ippo", out=str(tmp_path), **{**TEAM, "teams": teams})


def test_a_query_is_answered_once_and_a_resume_goes_on_with_that_answer(first: Path, tmp_path: Path) -> None:
    """Between a stop and a resume the asked run goes on, and has a newer version that answers; nobody asks it again."""
    there = tmp_path / "asked"
    shutil.copytree(first, there)
    query = f"{there}@newest[return=0.., win_rate=0..1, version=4..]#receiver"
    settings = {**TEAM, "teams": ("sender=sender", f"receiver=run:{query}: deterministic")}
    whole = rl.train("ippo", out=str(tmp_path / "whole"), **settings)
    stopped = rl.train("ippo", out=str(tmp_path / "b"), on_update=lambda row: row["version"] < 4, **settings)
    (_, chosen) = json.loads((stopped.path / "config.json").read_text())["teams"]
    assert "[" not in chosen
    assert chosen.endswith("#receiver: deterministic")
    (told,) = [row["text"] for row in stopped.rows("event") if "which never changes" in row["text"]]
    assert "follow version 8 of" in told
    assert "the newest with return=0.., win_rate=0..1, version=4.." in told
    rl.resume(there, total_updates=12)
    assert parse_stored(rl.run.pin_teams([f"x=run:{query}"])[0][0].partition("=")[2]).which == "12"
    assert content(rl.resume(stopped.path)) == content(whole)
