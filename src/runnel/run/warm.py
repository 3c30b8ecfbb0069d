"""`init_from`: the parameters that a run starts from, and whether they mean the same here.

Shapes are compared when they are taken over (`ProcessGroup.warm_start`). What a language model computes with
them is in its config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.core.config import override
from runnel.core.contracts.params import ParamSet
from runnel.core.errors import ConfigError
from runnel.graphs.experiment import Experiment
from runnel.graphs.run_config import RunConfig
from runnel.llm.model.architecture import differing, model_config, saved_config
from runnel.llm.model.causal_lm import ModelConfig
from runnel.llm.model.lora import SCALE
from runnel.llm.model.pretrained import model_folder
from runnel.llm.tokenize import CharTokenizer
from runnel.run.checkpoint import Checkpoints
from runnel.track.folder import RunFolder

if TYPE_CHECKING:  # transformers takes seconds to import
    from transformers import PretrainedConfig

MODEL = "model"
"""Where in its folder a run leaves a model that other programs load."""


def warm_params(experiment: Experiment) -> tuple[ParamSet | None, list[str]]:
    """What `init_from` starts a run with, and what to tell of it."""
    config = experiment.config
    if not config.init_from:
        return None, []
    source = RunFolder.open(config.init_from, field="init_from")
    check_same_model(config, source)
    told: list[str] = []
    found = Checkpoints(source.checkpoints).newest_params(told)
    if SCALE in found.params:
        fix = f"its checkpoints hold adapters alone; start from its merged model: --model {source.path / MODEL}"
        raise ConfigError("init_from", config.init_from, fix)
    if missing := [name for name in experiment.own_params if name not in found.params]:
        fix = f"that run did not train the same kind of model ({missing[0]!r} is missing); use --model {source.path / MODEL}"
        raise ConfigError("init_from", config.init_from, fix)
    if experiment.export is None:  # of a language model its config was compared
        _check_fits(experiment, found)
    return found, [f"init_from {config.init_from!r}: {text}" for text in told]


def warm_learner(experiment: Experiment) -> Path | None:
    """With `init` learner: the checkpoint whose learner this run takes over."""
    config = experiment.config
    if config.init == "params":
        return None
    part = f"worker-{experiment.leader.name}"
    path = Checkpoints(RunFolder.open(config.init_from, field="init_from").checkpoints).newest((part,))[0]
    if not (path / f"{part}.json").is_file():
        fix = f"checkpoint {path.name} of that run has no part {part!r}, only parameters; use --init params"
        raise ConfigError("init", config.init, fix)
    return path


def _check_fits(experiment: Experiment, found: ParamSet) -> None:
    """Refuse parameters of another network while nothing of the run is there yet."""
    try:
        experiment.policy()[1].load_params(found)
    except (RuntimeError, KeyError) as error:  # what torch raises for other shapes, and for other names
        fix = f"that run has another network than this one; use the same ({str(error).strip().splitlines()[-1].strip()})"
        raise ConfigError("init_from", experiment.config.init_from, fix) from error


def check_same_model(config: RunConfig, source: RunFolder) -> None:
    """Refuse a language model whose parameters `source` has used in another way."""
    lm, before = getattr(config, "lm", None), source.read_config() if source.config.is_file() else {}
    if not isinstance(lm, ModelConfig):
        return
    if not isinstance(before.get("lm"), Mapping):
        raise ConfigError("init_from", config.init_from, "that run trained no language model; give one that did")
    ours = _config_of(str(getattr(config, "model", "")), lm)
    theirs = saved_config(source.path / MODEL) or _config_of(
        str(before.get("model", "")), override(ModelConfig(), before["lm"])
    )
    odd = differing(ours, theirs)
    if odd:
        told = ", ".join(f"{name} = {there!r} (here {here!r})" for name, (here, there) in odd.items())
        fix = "use the --model and --lm.* of that run, or its model folder as --model"
        raise ConfigError("init_from", config.init_from, f"the model of that run computes something else: {told}; {fix}")


def _config_of(model: str, lm: ModelConfig) -> PretrainedConfig:
    return model_config(replace(lm, path=model_folder(model)), CharTokenizer.vocab_size)
