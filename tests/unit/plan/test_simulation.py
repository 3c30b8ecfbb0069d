"""The simulated cluster: exact small cases, the shapes that SRL reports, and accounts that add up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runnel.core.errors import ConfigError
from runnel.flow.staleness import StalenessConfig
from runnel.plan.costs import Costs, LinearCost
from runnel.plan.simulate import NetworkConfig, SimConfig, SimResult, simulate

SYNC, ONE = StalenessConfig(mode="sync"), StalenessConfig(mode="one_step")
FREE_WAYS = NetworkConfig(gbps=1e9, latency_us=0.0)
PLAIN = Costs(
    num_steps=10,
    step=LinearCost(0.0, 0.01),
    infer=LinearCost(0.0, 0.0),
    serve=LinearCost(0.005, 0.0),
    message_s=0.0,
    update=LinearCost(0.05, 0.0),
    publish_s=0.0,
    load_s=0.0,
)
"""A segment takes 0.1 s to play, an update 0.05 s, an answer 0.005 s."""


def run(costs: Costs | None = None, **settings: Any) -> SimResult:
    result = simulate(SimConfig(**{"updates": 6, **settings}), costs)
    assert result.accounting.balance == 0
    return result


def plain(**settings: Any) -> SimResult:
    return run(PLAIN, **{"jitter": 0.0, "network": FREE_WAYS, "updates": 12, **settings})


# ------------------------------------------------------------------------------------------------- hand-computed cases
def test_synchronous_training_is_the_sum_of_its_phases() -> None:
    assert plain(actors=4, staleness=SYNC).updates_per_s == pytest.approx(1 / 0.15)


def test_one_step_off_is_the_longer_phase() -> None:
    assert plain(actors=4, staleness=ONE).updates_per_s == pytest.approx(1 / 0.1)
    slow = replace(PLAIN, update=LinearCost(0.3, 0.0))
    assert run(slow, actors=4, staleness=ONE, jitter=0.0, network=FREE_WAYS).updates_per_s == pytest.approx(1 / 0.3)


def test_a_remote_step_takes_the_answer_too() -> None:
    alone = plain(actors=1, inference="split", staleness=SYNC)
    assert alone.updates_per_s == pytest.approx(1 / (10 * 0.015 + 0.05))


def test_trainers_reduce_over_the_network() -> None:
    network = NetworkConfig(gbps=8.0, latency_us=0.0, actors_per_node=64)
    costs = replace(PLAIN, param_bytes=10**8, segment_bytes=0, update=LinearCost(0.0, 0.0))
    one = run(costs, actors=4, trainers=1, jitter=0.0, staleness=SYNC, network=network)
    four = run(costs, actors=4, trainers=4, jitter=0.0, staleness=SYNC, network=network)
    assert 1 / four.updates_per_s - 1 / one.updates_per_s == pytest.approx(2 * 3 / 4 * 0.1)


# ----------------------------------------------------------------------------------------------------------- staleness
@pytest.mark.parametrize("inference", ["inline", "split", "central"])
def test_synchronous_samples_are_fresh(inference: str) -> None:
    assert run(actors=12, trainers=2, inference=inference, num_env_groups=2, staleness=SYNC).staleness == {
        0: 2 * 5 * 6 * (1 + (inference != "inline"))
    }


@pytest.mark.parametrize("lag", [1, 3])
@pytest.mark.parametrize("inference", ["inline", "split"])
def test_a_window_is_never_exceeded(inference: str, lag: int) -> None:
    window = StalenessConfig(mode="window", max_lag=lag)
    result = run(actors=24, inference=inference, staleness=window, batch_segments=5, jitter=1.0, updates=20)
    assert 0 < result.mean_staleness <= result.max_staleness <= lag


def test_old_segments_are_dropped_and_counted() -> None:
    """Steps of very different length in a narrow window: what comes too late is dropped as stale."""
    result = run(actors=40, staleness=StalenessConfig(mode="window", max_lag=1), batch_segments=4, jitter=3.0, updates=40)
    assert result.accounting.dropped["stale"] > 0
    assert result.max_staleness <= 1


# -------------------------------------------------------------------------------------------------------------- shapes
def test_central_inference_saturates_where_inline_grows_on() -> None:
    """SRL's table 7: inference beside the learner ends early; inline grows with cores; split needs fewer of them."""

    def rate(inference: str, actors: int) -> float:
        return run(actors=actors, inference=inference, num_env_groups=4, updates=3).steps_per_s

    central, inline, split = ({n: rate(kind, n) for n in (15, 120, 240)} for kind in ("central", "inline", "split"))
    assert central[15] > 2 * inline[15]  # few actors: an accelerator answers faster than a core
    assert central[240] < 1.1 * central[120]  # saturated
    assert inline[240] > 1.8 * inline[120]  # linear still
    assert split[120] > 1.5 * central[120]
    assert split[120] > inline[120]
    assert run(actors=480, updates=4).steps_per_s > central[240]  # and inline crosses central


def test_a_ring_hides_the_answer_once_it_is_long_enough() -> None:
    """Idle time goes once response time < step time * (num_env_groups - 1). A step takes 10 ms, a batch 35, and a request
    that comes during a batch waits for the next one: 70 at most."""
    costs = replace(PLAIN, serve=LinearCost(0.035, 0.0))

    def busy(groups: int) -> float:
        settings = {"actors": 1, "inference": "split", "servers": 1, "num_env_groups": groups, "batch_segments": groups}
        return run(costs, jitter=0.0, network=FREE_WAYS, updates=8, **settings).utilisation["actors"]  # type: ignore[arg-type]

    assert busy(1) == pytest.approx(10 / 45, rel=0.05)
    assert busy(2) < busy(4) < 0.95
    assert busy(9) > 0.97


def test_the_sample_path_saturates_at_its_bandwidth() -> None:
    heavy = replace(Costs(), segment_bytes=10**8)
    narrow = NetworkConfig(gbps=8.0)  # ten segments a second
    for actors in (64, 128):
        result = run(heavy, actors=actors, network=narrow, updates=4)
        assert result.steps_per_s == pytest.approx(10 * heavy.segment_units, rel=0.1)
        assert result.utilisation["sample"] > 0.95


def test_parameters_reach_many_readers_only_by_fanning_out() -> None:
    costs = replace(Costs(), param_bytes=10**7, update=LinearCost(0.0, 0.0))

    def at(fan_out: str, actors: int = 512) -> SimResult:
        network = NetworkConfig(gbps=10.0, fan_out=fan_out)  # type: ignore[arg-type]
        return run(costs, actors=actors, staleness=SYNC, network=network, updates=4)

    assert at("node").steps_per_s > 3 * at("process").steps_per_s
    assert at("process").updates_per_s < 1.0 / (512 * 1e7 * 8 / 10e9)
    assert at("process", 64).steps_per_s > 0.5 * at("node", 64).steps_per_s


# ------------------------------------------------------------------------------------------------------------- the rest
def test_one_seed_one_result() -> None:
    a, b, c = (run(actors=30, inference="split", num_env_groups=2, seed=seed) for seed in (1, 1, 2))
    assert (a.steps_per_s, a.staleness, a.events) == (b.steps_per_s, b.staleness, b.events)
    assert a.steps_per_s != c.steps_per_s


def test_thousands_of_actors_take_seconds() -> None:
    result = run(actors=4000, trainers=8, updates=4)
    assert result.accounting.dispatched >= 4 * 4000
    assert result.steps_per_s == pytest.approx(4000 / 0.031, rel=0.1)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"actors": 2, "trainers": 3}, "actors"),
        ({"num_env_groups": 0}, "num_env_groups"),
        ({"network": NetworkConfig(gbps=0)}, "network"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        simulate(SimConfig(**settings))
