"""The net itself: it covers every recipe, notices one bit, and its accelerated forms agree with the plain ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from golden_cases import CLASSICAL, SAME
from golden_machine import machine, unlike
from golden_runs import differences, flat, read
from golden_token_cases import SAME as SAME_TOKENS
from golden_token_cases import TOKENS

from runnel.run.pipeline import PIPELINES
from runnel.run.registry import RECIPES

RECORDED = read()[1]
IN_TURNS = {
    **dict.fromkeys(("td3", "drm", "mex"), "the actor moves with every second update"),
    "token_ppo": "the critic may warm up alone",
}
WITHOUT_NORM = {
    **dict.fromkeys(("stream_ac", "stream_q"), "each transition is a step of its own"),
    "sqirl": "each version fits its networks anew",
}
WITHOUT_STEPS = {"make_pairs": "it trains nothing"}


def test_every_recipe_and_pipeline_has_a_golden_run_as_it_is() -> None:
    expected = {f"recipe {name}" for name in RECIPES} | {f"pipeline {name}" for name in PIPELINES}
    assert expected <= {*CLASSICAL, *TOKENS}
    assert list(RECORDED) == [*CLASSICAL, *TOKENS], "record the cases that are new, and forget those that are gone"


def gradients(metrics: dict[str, float]) -> list[float]:
    """The norm of the gradient; of each policy, where several learn."""
    found = [x for name, x in metrics.items() if name == "grad_norm" or name.endswith("/grad_norm")]
    assert found
    return found


@pytest.mark.parametrize("name", list(RECORDED))
def test_a_golden_run_moves_its_weights(name: str) -> None:
    """A run that takes no step pins nothing down."""
    recipe = {**CLASSICAL, **TOKENS}[name].recipe
    for stage, run in RECORDED[name].items():
        if recipe in WITHOUT_STEPS or stage.startswith("pairs"):
            continue
        bits = [run["start"], *(row["params"] for row in run["updates"])]
        assert bits[-1] != bits[0], stage
        assert len(bits) > 2, "two updates at least"
        if recipe not in IN_TURNS and recipe not in PIPELINES:
            assert len(set(bits)) == len(bits), stage
        if recipe not in {*IN_TURNS, *PIPELINES, *WITHOUT_NORM}:
            assert all(norm > 0 for row in run["updates"] for norm in gradients(row["metrics"]))


@pytest.mark.parametrize(("fast", "plain"), [*SAME.items(), *SAME_TOKENS.items()])
def test_an_accelerated_form_computes_what_the_plain_one_does(fast: str, plain: str) -> None:
    """In other bits: were they the same, the one would not have run."""
    new, old = RECORDED[fast], RECORDED[plain]
    assert new["run"]["start"] == old["run"]["start"]
    assert new["run"]["updates"][-1]["params"] != old["run"]["updates"][-1]["params"], "these are not two forms"
    assert not differences(new, old, exact=False)


def changed(path: str, value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    old = RECORDED["recipe ppo"]
    new = copy.deepcopy(old)
    *way, last = path.split(".")
    inner: Any = new
    for name in way:
        inner = inner[int(name)] if isinstance(inner, list) else inner[name]
    inner[last] = value
    return new, old


def test_one_bit_is_noticed_on_the_machine_that_recorded() -> None:
    loss = RECORDED["recipe ppo"]["run"]["updates"][1]["metrics"]["loss/total"]
    for path, value in (("run.updates.1.metrics.loss/total", loss * (1 + 2**-52)), ("run.updates.2.params", "0" * 16)):
        found = differences(*changed(path, value), exact=True)
        assert len(found) == 1
        assert found[0].startswith(f"{path} was ")
        assert not differences(*changed(path, value), exact=False)


def test_counts_and_numbers_are_noticed_on_any_machine() -> None:
    loss = RECORDED["recipe ppo"]["run"]["updates"][1]["metrics"]["loss/total"]
    assert differences(*changed("run.updates.1.steps", 1), exact=False)
    assert differences(*changed("run.updates.1.metrics.loss/total", loss * 1.002), exact=False)
    assert differences(*changed("run.updates.1.metrics.loss/total", float("nan")), exact=False)
    assert differences(*changed("run.updates.1.metrics.other", 1.0), exact=False)
    moved = RECORDED["recipe ppo"]["run"]["updates"][1]["moved"]
    assert differences(*changed("run.updates.1.moved", [moved[0] * 1.01, moved[1]]), exact=False)


def test_no_field_of_the_machine_is_forgotten() -> None:
    """Without one, bits would be compared loosely, and nobody told."""
    here, (recorded, _) = machine(), read()
    assert here.keys() == recorded.keys()
    assert all(here[k] for k in here if k not in ("environment", "flags", "cpu", "blas")), here
    assert not unlike(here, here)
    assert unlike({**here, "numpy": "1"}, here) == {"numpy": (here["numpy"], "1")}
    with pytest.raises(AssertionError, match="record it again"):
        unlike({k: v for k, v in here.items() if k != "numpy"}, here)


def test_paths_reach_every_value() -> None:
    assert flat({"a": [1, {"b": "c"}], "d": {}}) == {"a.num": 2, "a.0": 1, "a.1.b": "c"}
