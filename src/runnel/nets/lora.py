"""Low-rank adapters through peft, and the plain model with them merged in, which is what engines are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from runnel.core.errors import ConfigError
from runnel.nets.causal_lm import copy_model, load_model_params
from runnel.nets.pack import pack

ADAPTER = "default"


@dataclass(frozen=True)
class LoraConfig:
    """Train low-rank adapters beside frozen weights (Hu et al. 2021, arXiv:2106.09685), through peft."""

    rank: int = 0
    """Rank of the adapters; 0 trains all weights."""
    alpha: float = 32.0
    """The adapters' product is scaled by alpha / rank."""
    targets: tuple[str, ...] = ()
    """Names of the layers that get adapters (q_proj, down_proj, ...); empty: all linear layers but the output embedding."""

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ConfigError("learner.lora.rank", self.rank, "use 0 to train all weights, or a rank")


class Adapters:
    """Puts adapters into `model`, in place, and keeps a plain twin of it.

    The twin has the names and the layout of the model before; `merge` sets its weights to `W + alpha / rank * B A`. A new
    adapter changes nothing: B starts at 0.
    """

    def __init__(self, model: Any, config: LoraConfig, *, seed: int = 0) -> None:
        peft = _peft()
        self.plain = copy_model(model)
        targets = list(config.targets) or "all-linear"
        wanted = peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=targets, task_type="CAUSAL_LM")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                self.wrapped = peft.get_peft_model(model, wanted)
            except ValueError as error:
                raise ConfigError("learner.lora.targets", config.targets, str(error).splitlines()[0]) from error
        self.model = model
        self._layers = {name: m for name, m in model.named_modules() if isinstance(m, peft.tuners.lora.LoraLayer)}
        self.names = frozenset(name for name, p in model.named_parameters() if p.requires_grad)
        """The parameters that are trained."""

    def settle(self, *, dtype: torch.dtype, device: torch.device) -> None:
        """Give the twin its precision and device, and its first weights."""
        pack(self.plain, dtype=dtype, device=device)
        self.merge()

    @torch.no_grad()
    def merge(self) -> None:
        """The twin's weights from the model's weights and adapters."""
        for name, layer in self._layers.items():
            weight = self.plain.get_parameter(f"{name}.weight")
            weight.copy_(layer.base_layer.weight + layer.get_delta_weight(ADAPTER))

    @torch.no_grad()
    def start_from(self, params: Mapping[str, Tensor]) -> None:
        """Take plain weights as those that the adapters stand beside."""
        for name, own in self._frozen().items():
            own.copy_(params[name])
        self.renew()

    @torch.no_grad()
    def renew(self) -> None:
        """All weights of the twin anew: after those of the model were loaded."""
        load_model_params(self.plain, self._frozen(), bind=False)
        self.merge()

    def _frozen(self) -> dict[str, Tensor]:
        """The model's weights beside the adapters, by their plain names."""
        own = dict(self.model.named_parameters())
        inside = {name: name.removesuffix("weight") + "base_layer.weight" for name, _ in self.plain.named_parameters()}
        return {name: own[base if base in own else name].data for name, base in inside.items()}

    def save(self, folder: str) -> None:
        """The adapters alone, as peft saves them."""
        self.wrapped.save_pretrained(folder)


def _peft() -> Any:
    try:
        import peft
        import peft.tuners.lora
    except ModuleNotFoundError as error:
        raise ConfigError("learner.lora.rank", ">0", 'adapters need peft; pip install "runnel[llm]"') from error
    return peft
