"""The rules that detect a collapse, as a table: which metric, which limit, for how long, what it means, what to change.

`track/collapse.py` applies them. docs/guides/collapse.md shows them, and a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

World = Literal["environment", "language"]
Test = Literal["at_least", "at_most", "near_zero", "clipped", "beyond_returns", "constant"]

NO_ENTROPY = 1e-3
"""Nats. A policy that takes one of two actions 9,999 times in 10,000 has this entropy."""
NO_GRADIENT = 1e-12
"""A float32 gradient norm below this is rounding error. The smallest of healthy runs are about 1e-6."""
STEADY_EPISODES = 300
"""Episodes in a row with the same return: three times the window of the metric `return`."""


@dataclass(frozen=True)
class Sign:
    """The sign of a collapse: `test` is true for any of `metrics`. Rows without them do not count."""

    metrics: tuple[str, ...]
    test: Test
    limit: float
    updates: int
    """Consecutive rows that must show the sign before a collapse is reported, and that must not show it before it is over."""


@dataclass(frozen=True)
class CollapseRule:
    """One way to collapse."""

    kind: str
    world: World
    sign: Sign
    shows: str
    """What is wrong, in words."""
    means: str
    """What usually causes it."""
    advice: str
    """What to do (raise, lower, ...) and with which settings: dotted names, in which `*` stands for the algorithm's own group.
    Settings that a recipe does not have are left out."""
    beside: str = ""
    """Only rows that have this metric count."""
    may_be_solved: bool = False
    """Whether a run that has learned its task can look the same. Such a run gets a note, and no warning."""

    @property
    def fixes(self) -> list[tuple[str, list[str]]]:
        """The parts of `advice`: what to do, and the names of settings."""
        parts = [part.split(": ") for part in self.advice.split("; ")]
        return [(verb, names.split(", ")) for verb, names in parts]


RULES: tuple[CollapseRule, ...] = (
    CollapseRule(
        "no signal",
        "language",
        Sign(("groups_zero_signal",), "at_least", 1.0, updates=10),
        "all completions of each prompt get the same reward, so the loss of the policy is 0",
        "the policy gives the same answer each time, because it was changed too fast or its exploration was not rewarded",
        "lower: learner.lr; raise: *.entropy_coef, *.kl_coef, learner.temperature, group_size, num_prompts",
        may_be_solved=True,
    ),
    CollapseRule(
        "never a signal",
        "language",
        Sign(("groups_zero_signal",), "at_least", 1.0, updates=50),
        "no prompt has had two completions with different rewards since the run began",
        "the task is too hard for the model as it starts, or the reward never finds what it looks for in a completion",
        "raise: warmup_updates, group_size, num_prompts, learner.temperature, max_tokens; "
        "look at: data.extract, data.reward, task",
        may_be_solved=True,
    ),
    CollapseRule(
        "no pairs",
        "language",
        Sign(("pairs",), "at_most", 0.0, updates=10),
        "no prompt has two completions with different rewards, so there is no pair to learn from",
        "the policy gives the same answer each time, or the reward cannot tell its answers apart",
        "lower: learner.lr; raise: *.beta, learner.temperature, group_size, num_prompts, warmup_updates",
        may_be_solved=True,
    ),
    CollapseRule(
        "no entropy",
        "language",
        Sign(("entropy",), "near_zero", NO_ENTROPY, updates=10),
        "the policy is sure of every token, so it samples one answer for each prompt",
        "it was changed too fast, or nothing keeps it from betting on one answer",
        "lower: learner.lr, learner.num_epochs; raise: *.entropy_coef, *.kl_coef, *.beta, learner.temperature, num_prompts",
        beside="reward/mean",
        may_be_solved=True,
    ),
    CollapseRule(
        "no entropy",
        "environment",
        Sign(("entropy",), "near_zero", NO_ENTROPY, updates=20),
        "the policy takes the same action each time in each state, so it finds nothing new",
        "it was changed too fast, or nothing pays for exploring",
        "raise: *.entropy_coef, *.target_entropy, *.temperature, num_envs, num_steps; lower: *.lr, *.actor_lr, *.num_epochs",
        may_be_solved=True,
    ),
    CollapseRule(
        "no gradient",
        "language",
        Sign(("grad_norm",), "at_most", NO_GRADIENT, updates=10),
        "every gradient is 0, so no weight moves",
        "the loss is flat: all is learned, or numbers are too small for the precision",
        "change: learner.lr, learner.precision, *.beta; look at: task, pairs, data.reward",
        may_be_solved=True,
    ),
    CollapseRule(
        "no gradient",
        "environment",
        Sign(("grad_norm",), "at_most", NO_GRADIENT, updates=20),
        "every gradient is 0, so no weight moves",
        "units of the network are dead after steps that were too large, or no reward has differed from what was expected",
        "lower: *.lr, *.critic_lr, *.actor_lr; change: net.activation, *.normalise_obs, *.epsilon, *.exploration_noise",
        may_be_solved=True,
    ),
    CollapseRule(
        "constant returns",
        "environment",
        Sign(("return",), "constant", STEADY_EPISODES, updates=10),
        "every episode ends with the same return",
        "the policy has lost what it had learned and no longer explores",
        "lower: *.lr, *.actor_lr, *.critic_lr, *.num_epochs; "
        "raise: *.entropy_coef, *.epsilon, *.exploration_noise, *.temperature",
        may_be_solved=True,
    ),
    CollapseRule(
        "large steps",
        "environment",
        Sign(("kl",), "at_least", 1.0, updates=5),
        "one update moves the policy so far that its own samples have become unlikely",
        "steps are too large, or samples too old",
        "lower: *.lr, *.num_epochs, *.max_grad_norm, *.clip_range, staleness.max_lag; set: *.target_kl",
    ),
    CollapseRule(
        "large steps",
        "language",
        Sign(("approx_kl",), "at_least", 1.0, updates=5),
        "one update moves the policy so far that its own samples have become unlikely",
        "steps are too large, or samples too old",
        "lower: learner.lr, learner.num_epochs, learner.max_grad_norm, *.clip_high, staleness.max_lag",
    ),
    CollapseRule(
        "far from the reference",
        "language",
        Sign(("kl",), "at_least", 10.0, updates=5),
        "the policy writes tokens that the reference would hardly ever write",
        "the reward is won by text that the model did not write before, often by a flaw of the reward",
        "raise: *.kl_coef; lower: learner.lr; look at: reward_model, data.reward",
    ),
    CollapseRule(
        "all clipped",
        "environment",
        Sign(("clip_fraction",), "clipped", 0.9, updates=10),
        "nearly every sample is outside the clip interval, so hardly any earns a gradient",
        "steps are too large for the clip interval, or samples too old",
        "lower: *.lr, *.num_epochs, staleness.max_lag; raise: *.clip_range; set: *.target_kl",
    ),
    CollapseRule(
        "all clipped",
        "language",
        Sign(("clip_fraction",), "clipped", 0.9, updates=10),
        "nearly every token is outside the clip interval, so hardly any earns a gradient",
        "steps are too large for the clip interval, or samples too old",
        "lower: learner.lr, learner.num_epochs, learner.num_minibatches, staleness.max_lag; "
        "raise: *.clip_high, *.clip_low, *.max_ratio",
    ),
    CollapseRule(
        "values run away",
        "environment",
        Sign(("loss/value", "loss/critic", "loss/td", "q"), "beyond_returns", 1e4, updates=10),
        "the critic's loss or its values are far beyond any return that was seen",
        "it learns from its own too high guesses, or its steps are too large",
        "lower: *.lr, *.critic_lr, *.gamma, *.max_grad_norm, *.temperature, *.tau, update_ratio; raise: *.target_every; "
        "set: *.normalise_reward, *.value_clip, *.double",
    ),
    CollapseRule(
        "values run away",
        "language",
        Sign(("loss/value",), "beyond_returns", 1e4, updates=10),
        "the critic's loss is far beyond any reward that was seen",
        "its steps are too large, or rewards are much larger than 1",
        "lower: learner.critic_lr; raise: *.critic_warmup; set: *.value_clip",
    ),
)
