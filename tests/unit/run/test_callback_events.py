"""Callbacks see the policy of the moment, and may add numbers to the run's metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import runnel as rl
from runnel.core.clock import ManualClock
from runnel.core.errors import ConfigError, RunnelError
from runnel.run.events import PolicyNow
from runnel.run.ledger import Callbacks, Ledger
from runnel.track.folder import RunFolder
from runnel.track.sinks.base import scalars

TINY: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 8,
    "vector.backend": "serial",
    "net.hidden": (4,),
    "total_updates": 4,
    "eval.every": 2,
    "eval.episodes": 1,
    "checkpoint.every": 2,
    "track": (),
    "name": "run",
    "ppo.num_minibatches": 1,
    "ppo.lr": 0.05,
}
OBS = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)


def bare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "time"} for row in rows]


def test_the_policy_is_the_one_of_that_version_and_changes_nothing(tmp_path: Path) -> None:
    plain = rl.train("ppo", out=str(tmp_path / "plain"), **TINY)
    seen: dict[str, Any] = {}

    def look(event: rl.Event) -> None:
        seen[f"{event['kind']} {event.get('version')}"] = event.policy.act(OBS, deterministic=False)
        event.policy.act(OBS)

    calls = dict.fromkeys(("on_update", "on_eval", "on_checkpoint", "on_episode"), look)
    watched = rl.train("ppo", out=str(tmp_path / "watched"), **calls, **TINY)
    assert bare(watched.rows()) == bare(plain.rows()), "whoever looks changes nothing"
    assert {"update 1", "update 4", "eval 2", "checkpoint 2", "eval 4"} <= set(seen)
    final: list[Any] = []
    rl.train(
        "ppo",
        out=str(tmp_path / "again"),
        on_update=lambda event: final.append(event.policy.act(OBS)) if event["version"] == 4 else None,
        **TINY,
    )
    assert (final[0] == rl.load(watched.path).act(OBS)).all()


def test_what_is_logged_stands_in_the_rows_and_in_sinks(tmp_path: Path) -> None:
    def on_update(event: rl.Event) -> None:
        event.log({"my/version": event["version"], "my/tensor": torch.tensor(0.5)})

    def on_eval(event: rl.Event) -> bool:
        event.log({"my/eval": event["mean"] * 2})
        return event["version"] < 4

    def on_episode(event: rl.Event) -> None:
        event.log({"my/length": event["length"]})

    settings = {**TINY, "num_steps": 64, "total_updates": 6, "track": ("csv",)}
    run = rl.train("ppo", out=str(tmp_path), on_update=on_update, on_eval=on_eval, on_episode=on_episode, **settings)
    assert (run.status, run.version) == ("stopped", 4), "it may stop the run too"
    assert [row["metrics"]["my/version"] for row in run.rows()] == [1.0, 2.0, 3.0, 4.0]
    assert any("my/length" in row["metrics"] for row in run.rows())
    (first, _) = run.rows("eval")
    assert first["metrics"] == {"my/eval": first["mean"] * 2}
    assert scalars(first)["my/eval"] == first["mean"] * 2
    head = (run.path / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"my/version", "my/tensor", "my/eval"} <= set(head)


def test_between_rows_the_last_number_counts_and_a_resume_knows_it(tmp_path: Path) -> None:
    def on_update(event: rl.Event) -> None:
        if event["version"] % 2:
            event.log({"odd": event["version"]})

    settings = {**TINY, "log_every": 2}
    whole = rl.train("ppo", out=str(tmp_path / "whole"), on_update=on_update, **settings)
    assert [row["metrics"]["odd"] for row in whole.rows()] == [1.0, 3.0]

    def stop(event: rl.Event) -> bool:
        on_update(event)
        return event["version"] < 3

    half = rl.train("ppo", out=str(tmp_path / "half"), on_update=stop, **settings)
    assert half.version == 3
    rest = rl.resume(half.path, on_update=on_update)
    assert bare(rest.rows()) == bare(whole.rows())


@pytest.mark.parametrize(
    ("metrics", "why"),
    [
        ({"kl": 1.0}, "the run has a metric of this name"),
        ({"mine": "much"}, "mine is no number"),
        ({"": 1.0}, "a metric's name is a text"),
        (3, "give names and numbers"),
    ],
)
def test_what_cannot_be_logged_is_refused(metrics: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=why):
        rl.train("ppo", out=str(tmp_path), on_update=lambda event: event.log(metrics), **TINY)
    rows = RunFolder(tmp_path / "run").read_rows()[0]
    assert [row["version"] for row in rows if row["kind"] == "update"] == [1], "the row is there all the same"


def test_with_the_learner_elsewhere_a_checkpoint_has_the_policy_and_others_say_so(tmp_path: Path) -> None:
    run = rl.train("ppo", out=str(tmp_path), **TINY)
    experiment_policy = PolicyNow(lambda: (rl.load(run.path), FakeInferencer()))
    found: list[Any] = []
    ledger = Ledger(
        RunFolder(tmp_path / "other"),
        ManualClock(),
        callbacks=Callbacks(on_checkpoint=lambda event: found.append(event.policy), on_eval=lambda event: event.policy),
        policy=experiment_policy,
    )
    (tmp_path / "other").mkdir()
    newest = sorted(RunFolder(run.path).checkpoints.iterdir())[-1]
    ledger.checkpoint(newest, 4)
    assert FakeInferencer.loaded == [4]
    assert len(found) == 1
    with pytest.raises(RunnelError, match=r"event\.policy of on_eval: the learner is in another process; use launcher inproc"):
        ledger.add([{"kind": "eval", "version": 0, "returns": [1.0], "extra": {}, "samples": []}])


class FakeInferencer:
    loaded: ClassVar[list[int]] = []

    def load_params(self, params: rl.core.ParamSet) -> None:
        self.loaded.append(params.version)
