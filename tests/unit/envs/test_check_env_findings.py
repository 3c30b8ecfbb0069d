"""check_env, finding by finding: one small environment for each, and what the report says of it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from toy_envs import Composite, DictGoal

from runnel.envs.toy import Counter, MaskedBandit, TruncationTrap
from runnel.testing.env_play import difference
from runnel.testing.env_report import EnvReport
from runnel.testing.envs import check_env


class Scripted(gym.Env):
    """Episodes of 7 steps, cut; `space`, `obs`, `reward` and so on say what it shows."""

    space: Any = spaces.Box(-1, 1, (2,))
    actions: Any = spaces.Discrete(2)

    def __init__(self) -> None:
        self.observation_space, self.action_space, self.t = self.space, self.actions, 0

    def obs(self) -> Any:
        return np.full(2, self.t / 10, np.float32)

    def reward(self) -> Any:
        return 1.0

    def info(self) -> Any:
        return {}

    def ends(self) -> tuple[Any, Any]:
        return False, self.t >= 7

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.obs(), self.info()

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.t += 1
        return self.obs(), self.reward(), *self.ends(), self.info()


def variant(**parts: Any) -> type[Scripted]:
    return type("Variant", (Scripted,), parts)


def only(report: EnvReport) -> str:
    """The one error of a report that has nothing else to say."""
    (error,) = report
    assert not report.warnings, report
    assert not report.hints, report
    return error


def shows(space: Any, value: Any) -> type[Scripted]:
    return variant(space=space, obs=lambda self: value)


def test_a_clean_environment_has_an_empty_report() -> None:
    report = check_env(Scripted)
    assert report == []
    assert (report.warnings, report.hints) == ([], [])
    assert report.num_steps >= 128
    assert report.num_episodes >= 5
    assert (
        str(report) == f"Scripted: nothing to complain about ({report.num_steps} steps, {report.num_episodes} episodes played)"
    )


BOX, BYTES = spaces.Box(-1, 1, (2,)), spaces.Box(0, 255, (3, 4), np.uint8)
PAIR = spaces.Tuple((spaces.Discrete(3, start=2), spaces.MultiDiscrete([2, 3])))
FREE = spaces.Box(-np.inf, np.inf, (2,))


def numbers(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


ERRORS = {
    "shape": (shows(BOX, numbers(0, 0)[:, None]), "has shape (2, 1), its space says (2,); return it as .reshape(2,)"),
    "other shape": (shows(BOX, numbers(0, 0, 0)), "has shape (3,), its space says (2,); return that shape"),
    "dtype": (shows(BOX, np.zeros(2)), "has dtype float64, its space says float32; return it as .astype(np.float32)"),
    "not bytes": (shows(BYTES, np.zeros((3, 4), np.int64)), "has dtype int64, its space says uint8"),
    "above": (shows(BOX, numbers(0, 3)), "outside of its space Box(-1.0, 1.0, (2,), float32): 3 at index [1] is above 1"),
    "below": (shows(BOX, numbers(-2.5, 0)), "-2.5 at index [0] is below -1; clip it, or widen the space"),
    "nan": (shows(BOX, numbers(0, np.nan)), "is not finite: nan at index [1]"),
    "infinite": (shows(FREE, numbers(0, np.inf)), "is not finite: inf at index [1]"),
    "nothing": (shows(BOX, None), "is a NoneType; return a numpy array of shape (2,)"),
    "words": (shows(BOX, "left"), "is a str; return a numpy array"),
    "float place": (shows(spaces.Discrete(4), 1.0), "is a float; its space says a whole number"),
    "array place": (shows(spaces.Discrete(4), np.array([1])), "has shape (1,), its space says (); return the number in it"),
    "place": (shows(spaces.Discrete(4, start=1), 5), "is 5, outside of its space Discrete(4, start=1): it holds 1 to 4"),
    "no dict": (
        shows(spaces.Dict(a=BOX), numbers(0, 0)),
        "is a ndarray; its space is a Dict: return a dict",
    ),
    "key": (shows(spaces.Dict(a=BOX, b=BOX), {"a": numbers(0, 0)}), "lacks 'b' of its space; return the same keys"),
    "tuple length": (shows(PAIR, (2,)), "is 1 parts; its space says a tuple of 2"),
    "in a tuple": (
        shows(PAIR, (2, np.array([1, 3]))),
        "observation[1] is outside of its space MultiDiscrete([2 3]): 3 at",
    ),
    "binary": (shows(spaces.MultiBinary(2), np.array([0, 2], np.int8)), "2 at index [1] is above 1"),
    "reward none": (variant(reward=lambda self: None), "reward is a NoneType; it must be a float"),
    "reward text": (variant(reward=lambda self: "1"), "reward is a str; it must be a float"),
    "reward array": (variant(reward=lambda self: np.ones(2)), "reward is a ndarray; it must be a float"),
    "reward bool": (variant(reward=lambda self: True), "reward is a bool; it must be a float"),
    "reward nan": (variant(reward=lambda self: float("nan")), "reward is not finite: nan"),
    "flag array": (variant(ends=lambda self: (np.zeros(2, bool), self.t >= 7)), "terminated is a ndarray; it must be a bool"),
    "flag int": (variant(ends=lambda self: (0, self.t >= 7)), "terminated is a int; it must be a bool: return bool(...)"),
    "making": (variant(__init__=lambda self: 1 / 0), "making it raised ZeroDivisionError"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_one_mistake_is_one_error(name: str) -> None:
    env, says = ERRORS[name]
    assert says in only(check_env(env))


def test_info_must_be_a_dict() -> None:
    class NoInfo(Scripted):
        def step(self, action: Any) -> Any:
            return (*super().step(action)[:4], None)

    assert "info that is a NoneType; it must be a dict" in only(check_env(NoInfo))

    class Late(Scripted):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return super().reset(seed=seed)[0], None

    assert "reset returned a tuple of 2; it must return (observation, info), info being a dict" in only(check_env(Late))


def test_all_mistakes_are_listed_not_the_first() -> None:
    report = check_env(
        variant(obs=lambda self: np.array([5, np.nan]), reward=lambda self: None, ends=lambda self: (0, int(self.t >= 7)))
    )
    text = str(report)
    for word in ("has dtype float64", "is not finite", "reward is a NoneType", "terminated is a int", "truncated is a int"):
        assert word in text
    assert len(report) == 5
    assert text.startswith("Variant: 5 errors (")
    assert "\n  error    the observation has dtype float64" in text


def test_a_step_that_raises_says_where() -> None:
    class Breaks(Scripted):
        def step(self, action: Any) -> Any:
            if self.t == 3:
                raise RuntimeError("out of fuel")
            return super().step(action)

    assert "raised RuntimeError: out of fuel (in step 4 of an episode)" in only(check_env(Breaks))


def test_a_reset_that_raises_is_described() -> None:
    class Breaks(Scripted):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            raise KeyError("level")

    assert "reset(seed=...) raised KeyError: 'level'" in only(check_env(Breaks))


# ------------------------------------------------------------------------------------------------------ determinism
def test_an_unseeded_first_observation_and_an_unseeded_step_are_told_apart() -> None:
    class First(Scripted):
        def obs(self) -> Any:
            return np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)

    assert "is not deterministic under a seed: after reset(seed=12345) and the same actions, the first observation is" in only(
        check_env(First)
    )

    class Later(Scripted):
        def reward(self) -> Any:
            return float(np.random.default_rng().random()) if self.t == 4 else 0.0

    assert "step 4 gave another reward; draw all randomness from self.np_random" in only(check_env(Later))


class Forgets(Scripted):
    """Never sets back its step count."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        before = self.t
        _, info = super().reset(seed=seed)
        self.t = min(before, 7)
        return self.obs(), info


def test_what_reset_leaves_behind_is_told_from_randomness() -> None:
    assert "once it was played: a fresh one repeats what this one did" in only(check_env(Forgets))
    assert "set back every attribute in reset" in only(check_env(Forgets()))


def test_difference_names_the_first() -> None:
    start, step = {"first observation": "a"}, {"observation": "o", "reward": 1, "end": False}
    assert difference([start, step], [start, step]) is None
    assert difference([start], [start | {"first observation": "b"}]) == "the first observation is another one"
    other = step | {"observation": "p", "reward": 2}
    assert difference([start, step], [start, other]) == "step 1 gave another observation and reward"
    over = step | {"end": True}
    assert difference([start, over, start], [start, step, step]) == "step 1 gave another end"
    again = difference([start, over, start], [start, over, {"first observation": "b"}])
    assert again == "the first observation is another one (of the episode after step 1)"


# ------------------------------------------------------------------------------------------------------------ masks
THREE = spaces.Discrete(3)


def masked(mask: Any, *, later: Any = "same", actions: Any = THREE) -> type[Scripted]:
    def info(self: Any) -> Any:
        now = mask if self.t == 0 or isinstance(later, str) else later
        return {} if now is None else {"action_mask": now}

    return variant(actions=actions, info=info)


TWO = spaces.MultiDiscrete([2, 3])


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (masked(np.ones(2)), "has shape (2,); it must have one entry per action, (3,)"),
        (masked(np.zeros(3)), "allows no action at all"),
        (masked(np.array([1, 1, 0, 0, 0]), actions=TWO), "allows no action at all"),
        (masked(np.ones(4), actions=TWO), "one entry per choice of each part, side by side, (5,)"),
        (masked((np.ones(2), np.ones((3, 1))), actions=TWO), "cannot be read"),
        (masked(np.array([0, 2, 1])), "values other than 0 and 1"),
        (masked(np.ones(3), later=None), "gave none later. Put one into every info"),
        (masked(None, later=np.ones(3)), "none at its first reset"),
        (masked(np.ones(1), actions=spaces.Box(0, 1, (1,))), "needs something discrete"),
        (variant(info=lambda self: {} if self.t == 7 else {"action_mask": np.ones(2)}), "truncates has no action_mask"),
    ],
)
def test_masks_that_do_not_fit(env: Any, says: str) -> None:
    assert says in only(check_env(env))


@pytest.mark.parametrize("mask", [np.array([0, 1, 1, 0, 1], bool), ([0, 1], np.array([1, 0, 1]))])
def test_masks_of_parts_are_kept_to(mask: Any) -> None:
    class Keeps(masked(mask, actions=spaces.MultiDiscrete([2, 3], start=[1, 0]))):
        def step(self, action: Any) -> Any:
            assert action[0] == 2
            assert action[1] != 1
            return super().step(action)

    assert check_env(Keeps) == []


@pytest.mark.parametrize("action", Composite.SPACES)
@pytest.mark.parametrize("closed", [False, True])
def test_composite_actions_pass(action: str, closed: bool) -> None:
    report = check_env(Composite, kwargs={"action": action, "masked": closed})
    assert report == []
    assert (report.warnings, report.hints) == ([], [])


# ------------------------------------------------------------------------------------------------ warnings and hints
def only_warning(report: EnvReport) -> str:
    assert report == []
    (warning,) = report.warnings
    assert not report.hints, report
    return warning


def only_hint(report: EnvReport) -> str:
    assert report == []
    assert not report.warnings, report
    (hint,) = report.hints
    return hint


def test_memory_that_changes_under_an_old_observation_is_a_warning() -> None:
    class Shares(Scripted):
        def __init__(self) -> None:
            super().__init__()
            self.memory = np.zeros(2, np.float32)

        def obs(self) -> Any:
            self.memory[:] = self.t / 10
            return self.memory

    assert "it is the same memory" in only_warning(check_env(Shares))

    class SharesInside(Shares):
        space = spaces.Dict(a=spaces.Tuple((BOX,)))

        def obs(self) -> Any:
            return {"a": (super().obs(),)}

    assert "return a copy" in only_warning(check_env(SharesInside))


def test_endless_episodes_are_a_warning_unless_a_time_limit_ends_them() -> None:
    endless = variant(ends=lambda self: (False, False), obs=lambda self: np.zeros(2, np.float32))
    assert "no episode ended within 328 random steps" in only_warning(check_env(endless, max_steps=200))
    limited = check_env(lambda: gym.wrappers.TimeLimit(endless(), 10_000), max_steps=200)
    assert (list(limited), limited.warnings, limited.hints) == ([], [], [])


def test_keys_beside_the_space_are_a_warning() -> None:
    more = shows(spaces.Dict(a=BOX), {"a": np.zeros(2, np.float32), "debug": 1})
    assert "has ['debug'], which its space does not name" in only_warning(check_env(more))


def test_a_close_that_raises_is_a_warning() -> None:
    def close(self: Any) -> None:
        raise OSError("no window")

    assert "close() raised OSError: no window" in only_warning(check_env(variant(close=close)))


def test_float_pixels_that_nobody_scales_are_a_warning() -> None:
    pixels = shows(spaces.Box(0, 255, (3, 32, 32)), np.full((3, 32, 32), 200, np.float32))
    report = check_env(pixels)
    assert "only bytes are scaled to 0..1" in report.warnings[0]
    assert "looks like pixels as float32" in report.hints[0]


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (shows(spaces.Box(-np.inf, np.inf, (2,)), np.array([1, 5e6], np.float32)), "numbers up to 5e+06; scale it"),
        (variant(reward=lambda self: -20_000.0), "a reward of -2e+04 is large"),
        (variant(ends=lambda self: (self.t >= 7, False)), "5 of 5 episodes ended as terminated after exactly 7 steps"),
        (shows(BOX, [0.0, 0.5]), "is a list; a numpy array of dtype float32 is faster"),
        (variant(reset=lambda self, seed=None: Scripted.reset(self, seed=seed)), "reset takes no options"),
        (shows(spaces.Box(0, 255, (64, 64), np.uint8), np.zeros((64, 64), np.uint8)), "give it the shape (1, 64, 64)"),
        (
            shows(spaces.Box(0, 255, (64, 80, 48), np.uint8), np.zeros((64, 80, 48), np.uint8)),
            "does not tell where its channels",
        ),
        (shows(spaces.Box(0, 255, (20, 20, 40), np.uint8), np.zeros((20, 20, 40), np.uint8)), "its 40 channels last (H, W, C)"),
        (variant(step=lambda self, action: Scripted.step(self, 0)), "accepted the action 2 in silence, outside of Discrete(2)"),
    ],
)
def test_hints(env: Any, says: str) -> None:
    assert says in only_hint(check_env(env))


@pytest.mark.parametrize("shape", [(84, 84, 4), (3, 64, 64), (10, 10, 4), (4, 4, 4)])
def test_usual_pictures_and_boards_get_no_hint(shape: tuple[int, ...]) -> None:
    report = check_env(shows(spaces.Box(0, 255, shape, np.uint8), np.zeros(shape, np.uint8)))
    assert (list(report), report.warnings, report.hints) == ([], [], [])


def test_one_step_episodes_and_uneven_ones_are_no_hidden_limit() -> None:
    assert check_env(MaskedBandit).hints == []
    assert not any("time limit" in hint for hint in check_env(DictGoal).hints)
    assert any("time limit" in hint for hint in check_env(Counter).hints)


# ------------------------------------------------------------------------------------------------- saved and restored
def test_a_state_that_does_not_bring_it_back_is_an_error() -> None:
    assert check_env(Counter) == []

    class Loses(Counter):
        def set_state(self, state: Any) -> None:
            self._t = 0

        def get_state(self) -> Any:
            return {}

    class Raises(Counter):
        def set_state(self, state: Any) -> None:
            raise NotImplementedError("later")

    assert "set_state(get_state()) does not bring Loses back" in check_env(Loses)[0]
    assert check_env(lambda: gym.wrappers.TimeLimit(Counter(length=50), 9)) == []
    assert "get_state or set_state raised NotImplementedError: later" in check_env(Raises)[0]


def test_the_report_reads_as_text() -> None:
    class Several(TruncationTrap):
        def step(self, action: Any) -> Any:
            obs, _, terminated, truncated, info = super().step(action)
            return obs, np.float32(5000), terminated, bool(truncated and terminated), info

    lines = str(check_env(Several, max_steps=64)).splitlines()
    assert lines[0].endswith("1 warning, 2 hints (192 steps, 0 episodes played)")
    assert lines[1].startswith("  warning  no episode ended within 192 random steps")
    assert lines[2].startswith("           ")
    assert all(len(line) <= 118 for line in lines)
    assert sum(line.startswith("  hint     ") for line in lines) == 2


PRICED = {"cost": 0.5, "costs": {"hazard": 1.0}, "rewards": {"forward": np.float32(2.0)}}


def test_it_says_how_costs_and_rewards_in_info_are_read() -> None:
    report = check_env(variant(info=lambda self: PRICED if self.t else {}))
    assert report == []
    (hint,) = report.hints
    assert "--channels.rewards forward and --channels.costs hazard cost reads" in hint


@pytest.mark.parametrize(
    ("info", "text"),
    [
        (lambda self: {"cost": 1.0} if self.t % 2 else {}, "the cost 'cost' is in the info of some steps only"),
        (lambda self: {"costs": {"hazard": 1.0} if self.t == 3 else {}}, "the cost 'hazard' is in the info of some steps only"),
        (lambda self: {"cost": float("nan")}, "the cost 'cost' in info is nan"),
        (lambda self: {"rewards": {"forward": "far"}}, "the reward 'forward' in info is 'far'"),
    ],
)
def test_a_channel_that_comes_and_goes_or_is_no_number_is_an_error(info: Any, text: str) -> None:
    assert any(text in error for error in check_env(variant(info=info)))


def test_six_values_of_a_step_are_safety_gymnasiums_own() -> None:
    def step(self: Any, action: Any) -> Any:
        return self.obs(), 1.0, 0.0, False, False, {}

    assert "SafetyGymnasium2Gymnasium" in only(check_env(variant(step=step)))
