"""Checks that the functions behind a kernel are the stock ones, neither patched nor edited.

A kernel computes the same as some plain functions. It may stand in for them only as long as they are unchanged since it was
written. There are two ways to change them:

- A function was replaced at run time (`runnel.agents.ppo.clipped_policy_loss = mine`, a mock, `learner.loss = mine`). Then it
  is another object than when this module was loaded.
- The source was edited. `fingerprints.json` has a checksum of each function's tokens, without comments, docstrings and layout.

If you change such a function, change the kernels too, run `tests/unit/kernels`, and write the checksums again:
`python -m runnel.kernels.write_fingerprints`.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import io
import json
import textwrap
import tokenize
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from runnel.agents import appo, ddpg, dqn, ppo, ppo_population, q_learning, sac, td3
from runnel.agents import base as shared
from runnel.losses import base, on_policy
from runnel.nets import actor_critic, continuous, layers, q_nets
from runnel.nets import optim as optimise
from runnel.ops import distributions

Owner = ModuleType | type
Place = tuple[Owner, str]
FILE = Path(__file__).with_name("fingerprints.json")
_SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def _of(owner: Owner, names: str) -> tuple[Place, ...]:
    return tuple((owner, name) for name in names.split())


ADAM = (*_of(optimise.Adam, "step apply _step _step_on_host"), *_of(optimise, "_join"))
NORMALISER = _of(layers.RunningMeanStd, "forward")
LAYERS = (
    *_of(layers.MLP, "__call__ forward _run one _found"),
    *_of(layers, "_affine _last"),
    *_of(layers.Torso, "__call__ forward"),
)
HEADS = (
    *_of(distributions.DiscreteHead, "evaluate"),
    *_of(distributions.ContinuousHead, "evaluate"),
    *_of(distributions, "mask_logits categorical_evaluate gaussian_evaluate _normal_logprob"),
)
ACTOR_CRITIC = (
    *_of(actor_critic.ActorCritic, "both value observe evaluate_scores _values _scores"),
    *_of(actor_critic.SeparateBody, "both value policy"),
    *LAYERS,
    *HEADS,
    *NORMALISER,
)
ACTING = (
    *_of(actor_critic.ActorCritic, "act observe _scores"),
    *_of(actor_critic.SeparateBody, "policy"),
    *LAYERS,
    *NORMALISER,
    *_of(distributions.DiscreteHead, "sample mode"),
    *_of(distributions.ContinuousHead, "sample mode _shaped"),
    *_of(distributions, "mask_logits categorical_sample categorical_mode gaussian_sample gaussian_mode _normal_logprob"),
)
"""Functions that `ActorCritic.act` runs."""
ACTING_Q = (*_of(q_nets.QNet, "act q scores expected _join"), *LAYERS, *_of(distributions, "mask_logits"))
"""Functions that `QNet.act` runs."""
PPO = (
    *_of(ppo.PPOLearner, "value epochs step loss policy_loss value_loss _count _forward _check _far"),
    *_of(ppo, "clipped_policy_loss value_loss approximate_kl masked_mean _columns"),
    *_of(on_policy, "masked_mean _k3"),
    *_of(base, "masked_mean"),
    *_of(shared.Shuffle, "order"),
    *ACTOR_CRITIC,
    *ADAM,
)
"""Functions that an update of PPO runs."""
DQN = (
    *_of(q_learning.QLearner, "step"),
    *_of(dqn.DQNLearner, "loss td_loss _transitions"),
    *_of(dqn, "huber_td_loss mask_logits _pick"),
    *_of(q_nets.QNet, "scores q expected _join"),
    *LAYERS,
    *ADAM,
)
"""Functions that an update of DQN runs."""
UPDATES: dict[type, tuple[Place, ...]] = {
    ppo.PPOLearner: _of(ppo.PPOLearner, "prepare make_batch credit _values value update learn epochs step loss"),
    appo.APPOLearner: _of(appo.APPOLearner, "credit"),
    ppo_population.PopulationLearner: _of(ppo_population.PopulationLearner, "prepare update"),
    sac.SACLearner: (
        *_of(sac.SACLearner, "update step critic_loss target actor_loss temperature_loss draw _wanted_entropy _count"),
        *_of(
            sac, "ensemble_td_loss soft_actor_loss soft_actor_loss_discrete temperature_loss soft_target soft_target_discrete"
        ),
    ),
    td3.TD3Learner: (
        *_of(td3.TD3Learner, "update step critic_loss target actor_loss _count"),
        *_of(td3, "ensemble_td_loss deterministic_actor_loss min_target"),
    ),
}
UPDATES[ddpg.DDPGLearner] = UPDATES[td3.TD3Learner]
UPDATES[appo.APPOLearner] += UPDATES[ppo.PPOLearner]
"""Functions of each learner's update that a CUDA graph records. They must not take decisions in Python."""
REPLAY_NETS = (
    *_of(continuous._Net, "scores"),
    *_of(continuous.SquashedGaussianActor, "sample"),
    *_of(continuous.DeterministicActor, "action"),
    *_of(continuous.QEnsemble, "q"),
    *_of(continuous.ActionBox, "normalise"),
    *_of(continuous, "squashed_gaussian"),
    *_of(distributions, "_squashed_logprob"),
    *LAYERS,
    *ADAM,
)
"""Functions of the networks that SAC and TD3 with continuous actions run."""
_ALL: tuple[Place, ...] = tuple(dict.fromkeys(sum(UPDATES.values(), (*ACTING, *ACTING_Q, *PPO, *DQN, *REPLAY_NETS))))
_THERE = {place: vars(place[0])[place[1]] for place in _ALL}
"""The functions at the time when runnel was loaded."""


def why_changed(places: Iterable[Place], instances: Iterable[object] = ()) -> str:
    """The first function at `places` that is not the stock one, in words; empty if all are.

    An attribute of one of `instances` that hides a method counts as a replacement.
    """
    owned = {name for owner, name in places if isinstance(owner, type)}
    for instance in instances:
        if hidden := owned & vars(instance).keys():
            return f"{type(instance).__name__}.{min(hidden)} was replaced on the object"
    for place in places:
        if vars(place[0]).get(place[1]) is not _THERE[place]:
            return f"{_name(place)} was replaced"
        if (known := _known().get(_name(place))) is not None and fingerprint(_THERE[place]) not in (known, ""):
            return f"{_name(place)} was edited"
    return ""


def _name(place: Place) -> str:
    owner, name = place
    whole = owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
    return f"{whole.removeprefix('runnel.')}.{name}"


@cache
def _known() -> dict[str, str]:
    found: dict[str, str] = json.loads(FILE.read_text())
    return found


@cache
def fingerprint(function: object) -> str:
    """A checksum of the tokens of a function's source, without comments and docstring; empty if there is no source.

    >>> fingerprint(eval("lambda x: x"))
    ''
    """
    code = _code(function)
    try:
        source = textwrap.dedent(inspect.getsource(code))
    except (OSError, TypeError):
        return ""
    tokens = tokenize.generate_tokens(io.StringIO(_without_docstring(source)).readline)
    text = "".join(token.string for token in tokens if token.type not in _SKIPPED)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _code(function: Any) -> CodeType:
    """The code of a function, without its decorators (`torch.no_grad`)."""
    found = inspect.unwrap(function.__func__ if isinstance(function, staticmethod) else function)
    assert isinstance(found, FunctionType), f"{function!r} is no function"
    return found.__code__


def _without_docstring(source: str) -> str:
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    first = function.body[0]
    if not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)):
        return source
    lines = source.splitlines(keepends=True)
    end = first.end_lineno or first.lineno
    empty = [] if len(function.body) > 1 else [f"{' ' * first.col_offset}pass\n"]
    return "".join([*lines[: first.lineno - 1], *empty, *lines[end:]])


def all_fingerprints() -> dict[str, str]:
    """The checksum of every function behind some kernel, by name."""
    return {_name(place): fingerprint(_THERE[place]) for place in sorted(_ALL, key=_name)}
