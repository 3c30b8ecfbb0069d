"""Which back end is chosen, what it says about it, and what is refused; and what a measurement would advise."""

import sys
from pathlib import Path

import pytest
import torch
from toy_envs import DictGoal, Slow

from runnel.core.errors import ConfigError, RunnelError
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.envs.registry import choose_backend, make_source, make_vector
from runnel.envs.toy import BadEnv
from runnel.envs.vector import VectorConfig
from runnel.envs.vector import measure as measuring
from runnel.envs.vector.measure import (
    Candidate,
    Timed,
    decide,
    measure_backends,
    random_actions,
    thread_counts,
    time_step,
    worker_counts,
)
from runnel.envs.vector.memory import check_memory

sys.path.insert(0, str(Path(__file__).parents[2] / "contract"))
from vector_cases import Breaks, Walk, WalkVector

PIXELS = EnvSpec({"obs": ArraySpec((4, 84, 84), torch.uint8)}, ActionSpec("discrete", num_actions=4))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"backend": "thread"}, "use one of auto, serial"),
        ({"on_error": "ignore"}, "stop or restart"),
        ({"num_workers": -1}, "0"),
        ({"step_timeout_s": float("nan")}, "0"),
        ({"backend": "serial", "num_workers": 2}, "backend=processes"),
        ({"backend": "processes", "threads": 2}, "num_workers"),
        ({"backend": "serial", "step_timeout_s": 1.0}, "backend=processes"),
        ({"backend": "envpool", "on_error": "restart"}, "serial or processes"),
    ],
)
def test_what_cannot_work_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        VectorConfig(**settings).check()


def test_a_resolved_config_holds_only_what_its_back_end_uses():
    asked = VectorConfig(num_workers=3, threads=2, step_timeout_s=1.0, frame_stack=4)
    for backend in ("serial", "gymnasium", "processes", "envpool"):
        found = asked.resolve(backend, num_workers=3 if backend == "processes" else 0)
        found.check()
        assert (found.backend, found.frame_stack) == (backend, 4)
    assert choose_backend("CartPole-v1", 256, plain=True).config == VectorConfig(backend="serial")
    assert choose_backend("CartPole-v1", 2, config=VectorConfig(step_timeout_s=1.0), plain=True).config.backend == "processes"
    assert choose_backend(WalkVector, 2, plain=True).config.backend == "gymnasium"


# ------------------------------------------------------------------------------------------------------------ the choice
CHOICES = [
    # environment, number, cores -> back end, processes; the episodes of serial and processes are the same
    ("CartPole-v1", 8, 2, "serial", 0),
    ("CartPole-v1", 63, 2, "serial", 0),
    ("CartPole-v1", 32, 16, "serial", 0),
    ("CartPole-v1", 64, 2, "gymnasium", 0),
    ("CartPole-v1", 64, 16, "gymnasium", 0),
    ("FrozenLake-v1", 8, 16, "serial", 0),
    ("MinAtar/Breakout-v1", 8, 16, "serial", 0),
    ("HalfCheetah-v5", 1, 16, "serial", 0),
    ("HalfCheetah-v5", 8, 1, "serial", 0),
    ("HalfCheetah-v5", 8, 2, "processes", 2),
    ("HalfCheetah-v5", 8, 16, "processes", 8),
    (DictGoal, 64, 16, "serial", 0),
    (Slow, 64, 16, "serial", 0),
    (WalkVector, 4, 16, "gymnasium", 0),
]


@pytest.mark.parametrize(("target", "num", "cores", "backend", "workers"), CHOICES)
def test_the_choice_is_a_function_of_environment_number_and_cores(target, num, cores, backend, workers, monkeypatch):
    for name in ("perf_counter", "monotonic", "time", "process_time"):
        monkeypatch.setattr(f"time.{name}", lambda: pytest.fail("a stopwatch was asked"))
    for _ in range(2):
        choice = choose_backend(target, num, cores=cores)
        assert choice.config == VectorConfig(backend=backend, num_workers=workers)
    assert choice.text.startswith(f"{target if isinstance(target, str) else target.__name__} x {num}: ")


def test_the_choice_says_why():
    texts = {name: choose_backend(name, 8, cores=2).text for name in ("CartPole-v1", "HalfCheetah-v5")}
    assert texts == {
        "CartPole-v1": "CartPole-v1 x 8: serial, as a step takes about 10 us, waking processes 140",
        "HalfCheetah-v5": "HalfCheetah-v5 x 8: processes: 2, as a step takes about 150 us on each of 2 cores",
    }
    assert "there is one core" in choose_backend("HalfCheetah-v5", 8, cores=1).text
    assert "runnel bench --backends" in choose_backend(Slow, 8, cores=2).text
    assert "random numbers are others than serial's" in choose_backend("CartPole-v1", 64, cores=2).text
    assert "tensors" in choose_backend("tensor:CartPole-v1", 4).text


def test_a_timeout_needs_processes_and_a_restart_no_foreign_vector():
    config = choose_backend("CartPole-v1", 4, config=VectorConfig(step_timeout_s=5.0), cores=2).config
    assert config == VectorConfig(backend="processes", num_workers=2, step_timeout_s=5.0)
    asked = choose_backend("CartPole-v1", 4, config=VectorConfig(num_workers=3), cores=2)
    assert asked.config == VectorConfig(backend="processes", num_workers=3)
    assert "vector.num_workers" in asked.text
    restart = choose_backend("CartPole-v1", 256, config=VectorConfig(on_error="restart"), cores=2)
    assert restart.config == VectorConfig(backend="processes", num_workers=2, on_error="restart")
    assert choose_backend("CartPole-v1", 256, kwargs={"render_mode": None}, cores=1).config.backend == "serial"


@pytest.mark.parametrize(
    ("target", "settings", "field"),
    [
        ("CartPole-v1", {"threads": 2}, "vector.threads"),
        ("CartPole-v1", {"backend": "gymnasium", "threads": 2}, "vector.threads"),
        (WalkVector, {"num_workers": 2}, "vector.num_workers"),
        (WalkVector, {"step_timeout_s": 1.0}, "vector.step_timeout_s"),
        (WalkVector, {"on_error": "restart"}, "vector.on_error"),
        (WalkVector, {"backend": "serial"}, "vector.backend"),
    ],
)
def test_what_the_chosen_back_end_cannot_do_is_refused(target, settings, field):
    with pytest.raises(ConfigError) as error:
        make_vector(target, 2, seed=0, config=VectorConfig(**settings))
    assert error.value.field == field


def test_auto_builds_what_it_chose():
    vector = make_vector(DictGoal, 2, seed=0, config=VectorConfig())
    assert type(vector).__name__ == "SerialVector"
    vector.close()


# ------------------------------------------------------------------------------------- a measurement, for `runnel bench`
def measured(target, num_envs, config=None, **options):
    return measure_backends(make_source(target, **options), num_envs, config or VectorConfig(), cores=2)


def fixed(label, backend, seconds):
    def measure():
        if seconds is None:
            raise ConfigError("x", 1, "broken")
        return seconds

    return Candidate(label, VectorConfig(backend=backend), measure)


def test_the_fastest_wins_only_where_it_is_worth_it():
    serial = fixed("serial", "serial", 100e-6)
    assert decide("E", 8, [serial, fixed("2 processes", "processes", 90e-6)]).config.backend == "serial"
    assert decide("E", 8, [serial, fixed("2 processes", "processes", 60e-6)]).config.backend == "processes"
    assert decide("E", 8, [serial, fixed("own", "gymnasium", 70e-6)]).config.backend == "serial"
    choice = decide("E", 8, [serial, fixed("own", "gymnasium", 41e-6), fixed("p", "processes", 160e-6)], "other numbers")
    assert choice.config.backend == "gymnasium"
    assert choice.text == "E x 8: own, 41 us a step (serial 100 us, p 160 us); other numbers"


def test_a_back_end_that_does_not_work_is_left_out_and_named():
    choice = decide("E", 2, [fixed("serial", "serial", 0.5), fixed("own", "gymnasium", None)])
    assert choice.text == "E x 2: serial, 500.0 ms a step (own does not work: x = 1: broken)"
    with pytest.raises(RunnelError, match="no back end works"):
        decide("E", 2, [fixed("own", "gymnasium", None)])


def test_numbers_of_workers_and_threads():
    assert worker_counts(8, 2, sleeps=False) == [2]
    assert worker_counts(8, 16, sleeps=False) == [8]
    assert worker_counts(64, 16, sleeps=False) == [8, 16]
    assert worker_counts(8, 2, sleeps=True) == [2, 8]
    assert worker_counts(1, 8, sleeps=True) == []
    assert thread_counts(64, 8) == [1, 4, 8]
    assert thread_counts(1, 8) == [1]


@pytest.fixture
def clock(monkeypatch):
    """Sets what steps of each kind of vector take; a few steps are made all the same."""
    seconds = {}

    def timed(vector):
        vector.reset()
        for _ in range(3):
            vector.step(torch.zeros(vector.num_envs, dtype=torch.int64))
        vector.close()
        name = type(vector).__name__
        return Timed(seconds[name] * (vector.num_envs if name == "SerialVector" else 1), 3)

    monkeypatch.setattr(measuring, "time_step", timed)
    return seconds


def test_a_quick_environment_is_not_given_processes(clock):
    clock.update(SerialVector=15e-6, GymVector=100e-6)
    assert measured("CartPole-v1", 8).text == ("CartPole-v1 x 8: serial, 120 us a step (gymnasium vector entry point 100 us)")


def test_a_slow_environment_is_given_a_process_a_core(clock):
    clock.update(SerialVector=1e-3, ProcessVector=1.2e-3)
    choice = measured(DictGoal, 8)
    assert choice.config == VectorConfig(backend="processes", num_workers=2)
    assert choice.text == "DictGoal x 8: 2 processes, 4200 us a step (serial 8000 us)"


def test_a_sleeping_environment_is_given_more_processes_than_cores(clock):
    clock.update(SerialVector=10e-3, ProcessVector=11e-3)
    assert measured(Slow, 4).config == VectorConfig(backend="processes", num_workers=4)


def test_a_measurement_leaves_out_what_the_settings_exclude(clock):
    clock.update(SerialVector=15e-6, ProcessVector=300e-6)
    assert measured("CartPole-v1", 4, VectorConfig(step_timeout_s=5.0)).config.backend == "processes"
    restart = measured("CartPole-v1", 4, VectorConfig(on_error="restart"))
    assert (restart.config.backend, restart.config.on_error) == ("serial", "restart")
    assert "gymnasium" not in restart.text


def test_many_quick_environments_are_given_gymnasiums_own_vector(clock):
    clock.update(SerialVector=15e-6, GymVector=110e-6, ProcessVector=90e-6)
    choice = measured("CartPole-v1", 256)
    assert choice.config == VectorConfig(backend="gymnasium")
    assert "other random numbers than serial" in choice.text


def test_a_real_measurement_comes_to_an_answer(monkeypatch):
    monkeypatch.setattr(measuring, "MEASURE_S", 0.01)
    choice = measured("CartPole-v1", 2)
    choice.config.check()
    assert choice.config.backend in ("serial", "gymnasium", "processes")
    assert choice.text.startswith("CartPole-v1 x 2: ")


def test_measuring_closes_what_it_measured_and_respects_masks():
    from runnel.envs.toy import MaskedBandit

    vector = make_vector(MaskedBandit, 3, seed=0)
    closed = []
    vector.close = lambda: closed.append(True)
    timed = time_step(vector, budget_s=0.01)
    assert closed == [True]
    assert timed.num_steps >= 3
    assert timed.step_s > 0.0


def test_random_actions_fit_composite_spaces():
    import gymnasium as gym
    import numpy as np

    class Both(Walk):
        def __init__(self):
            super().__init__()
            self.action_space = gym.spaces.Dict({"a": gym.spaces.Discrete(3), "b": gym.spaces.Box(-1, 1, (2,))})

        def step(self, action):
            assert self.action_space.contains(action)
            return super().step(action["a"])

    vector = make_vector(Both, 2, seed=0)
    vector.reset()
    rng = np.random.default_rng(0)
    for _ in range(20):
        vector.step(random_actions(vector, rng))
    state = vector.snapshot()
    twin = make_vector(Both, 2, seed=1)
    twin.restore(state)
    action = random_actions(vector, rng)
    assert torch.equal(vector.step(action).obs["obs"], twin.step(action).obs["obs"])


def test_an_environment_that_breaks_while_it_is_measured_is_named():
    with pytest.raises(RunnelError, match=r"BadEnv.*the environment broke"):
        measured(BadEnv, 2, kwargs={"fault": "raise"})


# ------------------------------------------------------------------------------------------------------------------ memory
def test_too_many_environments_say_what_would_fit():
    each = 28224 * (2 * 2 * 129 + 2)
    assert check_memory(PIXELS, 8, num_steps=128, free=10**9) == 8 * each
    with pytest.raises(ConfigError, match=r"num_envs = 4096: they need about 59\.9 GB .*1\.0 GB are free; at most 61 fit"):
        check_memory(PIXELS, 4096, num_steps=128, free=10**9)
    assert 61 * each <= 0.9e9 < 62 * each


def test_processes_count_too():
    with pytest.raises(ConfigError, match="at most 15943 fit"):
        check_memory(PIXELS, 20_000, num_steps=0, num_segments=0, free=10**9)
    with pytest.raises(ConfigError, match="at most 13109 fit"):
        check_memory(PIXELS, 20_000, num_steps=0, num_segments=0, num_workers=8, free=10**9)


def test_a_vector_too_large_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr("runnel.envs.vector.memory.free_memory", lambda: 10_000)
    with pytest.raises(ConfigError, match=r"num_envs = 1000: .* fit"):
        make_vector("CartPole-v1", 1000, seed=0)


def test_faults_of_serial_name_a_second_failure():
    from runnel.core.errors import DataError
    from runnel.envs.vector import episode_seed

    class Worse(Breaks):
        def reset(self, *, seed=None, options=None):
            if seed == episode_seed(7, 0, 1):
                raise OSError("gone for good")
            return super().reset(seed=seed, options=options)

    kwargs = {"how": "raise", "seed": episode_seed(7, 0, 0)}
    vector = make_vector(Worse, 1, seed=7, kwargs=kwargs, config=VectorConfig(backend="serial", on_error="restart"))
    vector.reset()
    zero = torch.zeros(1, dtype=torch.int64)
    vector.step(zero)
    vector.step(zero)
    with pytest.raises(DataError, match="gone for good"):
        vector.step(zero)
