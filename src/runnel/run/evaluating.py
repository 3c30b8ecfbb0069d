"""`rl.evaluate`: how good a policy is, given as such, or as the folder of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runnel.core.contracts.evaluation import EvalResult, Policy
from runnel.core.errors import ConfigError
from runnel.core.state import Settings
from runnel.envs.registry import Target
from runnel.envs.wrapped import EnvWrapper
from runnel.eval import runner
from runnel.graphs.user_objects import is_env
from runnel.run import api


def evaluate(
    policy: Policy | api.Run | str | Path,
    env: Target | None = None,
    *,
    episodes: int = 100,
    seed: int = 0,
    kwargs: Settings | None = None,
    frame_stack: int = 0,
    max_steps: int = runner.MAX_STEPS,
    wrappers: Sequence[str | EnvWrapper] = (),
    trust: bool = False,
) -> EvalResult:
    """Play `episodes` episodes of `env` with `policy`, greedily; episode i is reset with a seed of its own, and cut after
    `max_steps` (`extra["cut"]` then says which, and a warning how many).

    `policy` may be a run or its folder; without `env` it is then measured on what it was trained on. `env` may be an
    environment that is made already: it is played as it is, and left open. `trust`: as in `load`.
    """
    if isinstance(policy, api.Run):
        policy = policy.path
    if isinstance(policy, str | Path):
        if env is None:
            asked = _settings(kwargs, frame_stack, max_steps) | ({"wrappers": list(wrappers)} if wrappers else {})
            return api.evaluate_run(policy, episodes=episodes, seed=seed, settings=asked, trust=trust)
        policy = api.load(policy, trust=trust)
    if not callable(getattr(policy, "act", None)):
        fix = "give a policy (rl.load(run)), a run, or the path of its folder"
        raise ConfigError("policy", type(policy).__name__, fix)
    if env is None:
        raise ConfigError("env", None, "a policy knows no environment; say which it is to play")
    if is_env(env):
        if wrappers:
            raise ConfigError("wrappers", list(wrappers), "the environment is made already; wrap it yourself")
        return runner.evaluate_in(policy, env, episodes=episodes, seed=seed, max_steps=max_steps)
    return runner.evaluate(
        policy,
        env,
        episodes=episodes,
        seed=seed,
        kwargs=kwargs,
        frame_stack=frame_stack,
        max_steps=max_steps,
        wrappers=wrappers,
    )


def _settings(kwargs: Settings | None, frame_stack: int, max_steps: int) -> dict[str, object]:
    """What is asked of the run's own evaluation beside its episodes; what was left open stays as the run has it."""
    asked = {"env_kwargs": kwargs or None, "vector.frame_stack": frame_stack or None}
    found: dict[str, object] = {name: value for name, value in asked.items() if value is not None}
    return found if max_steps == runner.MAX_STEPS else {**found, "eval.max_steps": max_steps}
