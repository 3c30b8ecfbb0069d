"""`init_from`: whether the parameters of another run mean the same here.

Shapes are compared when they are taken over (`Group.warm_start`). What a language model computes with them is in its config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runnel.core.config import override
from runnel.core.errors import ConfigError
from runnel.llm.tokenize import CharTokenizer
from runnel.nets.architecture import differing, model_config, saved_config
from runnel.nets.causal_lm import ModelConfig
from runnel.nets.pretrained import model_folder
from runnel.run.experiment import RunConfig
from runnel.track.folder import RunFolder

MODEL = "model"
"""Where in its folder a run leaves a model that other programs load."""


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


def _config_of(model: str, lm: ModelConfig) -> Any:
    return model_config(replace(lm, path=model_folder(model)), CharTokenizer.vocab_size)
