"""`rl.record_data`: episodes of a run's policy as a data set."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path

from runnel.core.config import override
from runnel.core.contracts.evaluation import Progress
from runnel.core.errors import ConfigError
from runnel.data.dataset import Dataset, DatasetWriter
from runnel.eval.runner import MAX_STEPS
from runnel.flow.inference.inline import InlineClient
from runnel.graphs.experiment import EvaluationSpec, Experiment, PlayConfig
from runnel.run import registry
from runnel.run.saved import client_of, open_run, params_of, serving, steps_at
from runnel.track.folder import RunFolder


def record_data(
    run: str | Path,
    folder: str | Path,
    *,
    episodes: int = 100,
    stochastic: bool = False,
    seed: int = 0,
    max_steps: int = MAX_STEPS,
    states_every: int = 0,
    progress: Progress | None = None,
    best: bool = False,
    trust: bool = False,
) -> Dataset:
    """Play `episodes` whole episodes with a run's newest (or `best`) policy, and write all their steps to the new `folder`.

    The environment, its wrappers and its rewards are those that the run trains on. Actions are the greedy ones, or (with
    `stochastic`) drawn as in training. `seed` another number: other episodes; none of them is played in training or in an
    evaluation. With `states_every`, the environment's state is saved before every so many steps of an episode: a run may begin
    episodes there (`--curriculum.kind states`). `trust`: as in `load`.
    """
    for name, value in (("episodes", episodes), ("max_steps", max_steps)):
        if not isinstance(value, Integral) or value < 1:
            raise ConfigError(name, value, "use a whole number, at least 1")
    for name, value, zero in (("seed", seed, ""), ("states_every", states_every, "; 0 saves no states")):
        if not isinstance(value, Integral) or value < 0:
            raise ConfigError(name, value, f"use a whole number, at least 0{zero}")
    source, module, saved = open_run(run, trust=trust)
    asked = {"eval.episodes": 1}
    experiment = registry.build_saved(module.name, override(override(module.Config(), saved), asked), asked)
    spec = experiment.evaluation
    if spec is None or spec.player is None:
        fix = "its recipe plays no environment with one agent, and data sets are of those"
        raise ConfigError("run", str(run), fix)
    player, env_spec, env = spec.player(PlayConfig(int(episodes), seed, int(max_steps), int(states_every)))
    with (
        DatasetWriter(folder, env_spec, env, states=states_every > 0) as writer,
        _acting(source, spec, experiment, stochastic=stochastic, best=best) as client,
    ):
        for episode in player.run(client, progress=progress):
            writer.add(episode)
        if player.crashed:
            warnings.warn(f"{player.crashed} episodes crashed; others were played in their place", stacklevel=2)
        about = {"run": source.path.name, "recipe": module.name, "seed": seed, "stochastic": stochastic}
        about |= {"states_every": int(states_every)} if states_every else {}
        return writer.finish(**about, version=client.version, trained_steps=steps_at(source, client.version))


@contextmanager
def _acting(
    folder: RunFolder, spec: EvaluationSpec, experiment: Experiment, *, stochastic: bool, best: bool
) -> Iterator[InlineClient]:
    """The policy of a run as it is evaluated (greedy), or as it explores."""
    if not stochastic:
        with client_of(folder, spec, best=best) as client:
            yield client
        return
    with serving(experiment.policy()[1], params_of(folder, best=best)) as client:
        yield client
