"""Low-rank adapters: making them (peft chooses modules and first values), publishing them, and merging them into weights.

A version of a model with adapters has the adapters only: `<module>.lora_A.weight`, `<module>.lora_B.weight` and their scale. A
receiver has the base weights already. It uses the adapters beside them (`Decoder.adapt`), or merges them (`MergedModel`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from runnel.core.bounds import bounded, check_bounds
from runnel.core.errors import ConfigError
from runnel.core.resuming import OnResume, stays
from runnel.llm.model.causal_lm import copy_model, copy_modules, model_params, model_without_values
from runnel.llm.model.decoder import BESIDE, LORA_A, LORA_B
from runnel.llm.model.pack import pack_tensors

if TYPE_CHECKING:
    from types import ModuleType

    from peft import PeftModel
    from transformers import PretrainedConfig, PreTrainedModel

SCALE = "lora.scale"
"""Name of the adapters' scale in a published version; a version has this name if and only if it has adapters."""
DEFAULT = "default"
"""Name that peft gives to the only set of adapters of a model."""


@dataclass(frozen=True)
class LoraConfig:
    """Train low-rank adapters beside frozen weights (Hu et al. 2021, arXiv:2106.09685)."""

    on_resume: ClassVar[OnResume] = stays("rank", "alpha", "targets", why="what was learned is of those adapters")

    rank: int = bounded(0, at_least=0)
    """Rank of the adapters; 0 trains all weights."""
    alpha: float = bounded(32.0, above=0, note="else the adapters would add nothing")
    """The adapters' product is scaled by alpha / rank."""
    targets: tuple[str, ...] = ()
    """Names of the layers that get adapters (q_proj, down_proj, ...); empty: all linear layers but the output embedding."""

    def __post_init__(self) -> None:
        check_bounds(self, "learner.lora.")


@dataclass
class Adapters:
    """The adapters of a model by name: `lora_A [rank, in]` and `lora_B [out, rank]` of each module. `whole` names plain
    parameters that are trained with them (the head of a reward model)."""

    tensors: dict[str, Tensor]
    scale: float
    whole: tuple[str, ...] = ()

    @staticmethod
    def split(params: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Adapters | None]:
        """The plain parameters and the adapters of a published version; None if it has no adapters."""
        if SCALE not in params:
            return dict(params), None
        tensors = {name: value for name, value in params.items() if name.endswith((LORA_A, LORA_B))}
        plain = {name: value for name, value in params.items() if name != SCALE and name not in tensors}
        return plain, Adapters(tensors, float(params[SCALE]))

    def params(self) -> dict[str, Tensor]:
        """Live tensors, in the form in which they are published."""
        return {**{n: t.data for n, t in self.tensors.items()}, SCALE: torch.tensor(self.scale, dtype=torch.float64)}

    def modules(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Name, A and B of each module."""
        for name, down in self.tensors.items():
            if name.endswith(LORA_A):
                module = name.removesuffix(LORA_A)
                yield module, down.data, self.tensors[module + LORA_B].data

    def own(self, *, dtype: torch.dtype, device: str | torch.device) -> Adapters:
        """A copy in memory of its own, laid out as a decoder reads it."""
        tensors = _in_order({n: t.detach() for n, t in self.tensors.items() if n not in self.whole})
        pack_tensors(tensors, dtype=dtype, device=device)
        return Adapters(tensors, self.scale)

    @torch.no_grad()
    def copy_from(self, other: Adapters) -> bool:
        """Copy the values of other adapters if these have the same modules and scale; return whether they do."""
        if self.scale != other.scale or self.tensors.keys() != other.tensors.keys():
            return False
        for name, value in other.tensors.items():
            self.tensors[name].copy_(value)
        return True


# -------------------------------------------------------------------------------------------------------------- making
def make_adapters(model: PreTrainedModel, config: LoraConfig) -> Adapters:
    """New adapters for `model`, with the values that peft gives them after seed 0. The model itself does not change.

    A new adapter does not change the output, because B starts at 0.
    """
    root, prefix = _root(model)
    return _collect(_wrap(_shadow(root), config), prefix)


def check_adapters(config: PretrainedConfig, lora: LoraConfig) -> None:
    """Raise a `ConfigError` if a model of this transformers config cannot have the adapters of `lora`. It needs no weights."""
    make_adapters(model_without_values(config), lora)


def wrap_modules(model: PreTrainedModel, config: LoraConfig) -> Adapters:
    """Put the same adapters into `model` as modules of peft, for families that the decoder does not know. The head of a reward
    model is trained with them, as a whole weight."""
    root, prefix = _root(model)
    adapters = _collect(_wrap(root, config), prefix)
    if root is not model:
        adapters.tensors["score.weight"] = model.score.weight
        adapters.whole = ("score.weight",)
    return adapters


def plain_names(model: nn.Module) -> dict[str, Tensor]:
    """The parameters of a model without its adapters, by the names that they had before `wrap_modules`."""
    return {n.replace(".base_layer.", "."): p.data for n, p in model.named_parameters() if ".lora_" not in n}


def unwrapped(model: PreTrainedModel) -> PreTrainedModel:
    """A plain copy of a model that `wrap_modules` has changed, with the adapters merged into its weights."""
    root, _ = _root(twin := copy_model(model))
    for name, layer in list(root.named_modules()):
        if isinstance(layer, _peft().tuners.lora.LoraLayer):
            layer.merge()
            root.set_submodule(name, layer.get_base_layer())
    return twin


def _root(model: PreTrainedModel) -> tuple[PreTrainedModel, str]:
    """The transformers model that peft gets (a reward model wraps one), and the prefix of its module names in `model`."""
    if hasattr(model, "get_output_embeddings"):
        return model, ""
    return model.base_model, model.base_model_prefix + "."


def _shadow(model: PreTrainedModel) -> PreTrainedModel:
    """A copy in which every parameter has its shape but takes no memory."""
    # one number expanded to the whole shape; the meta device would also leave peft's own adapters without values
    return copy_modules(model, lambda value: torch.empty(1).expand(value.shape))


def _wrap(root: PreTrainedModel, config: LoraConfig) -> PeftModel:
    """`root` with modules of peft for `config.targets`, in place. Raises a `ConfigError` for those that cannot have one."""
    peft, targets = _peft(), list(config.targets) or "all-linear"
    kind = "CAUSAL_LM" if getattr(root, "get_output_embeddings", lambda: None)() is not None else None
    wanted = peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=targets, task_type=kind)
    embedding, names = root.get_input_embeddings().weight, [name for name, _ in root.named_modules()]
    for target in config.targets:
        if not any(name == target or name.endswith(f".{target}") for name in names):
            raise ConfigError("learner.lora.targets", config.targets, f"the model has no layer {target!r}; leave it out")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            wrapped = peft.get_peft_model(root, wanted)
        except ValueError as error:
            raise ConfigError("learner.lora.targets", config.targets, str(error).splitlines()[0]) from error
    for name, layer in root.named_modules():
        if isinstance(layer, peft.tuners.lora.LoraLayer) and layer.base_layer.weight is embedding:
            fix = f"{name} is the token embedding (or tied to it), beside which no adapter is trained; leave it out"
            raise ConfigError("learner.lora.targets", config.targets, fix)
    return wrapped


def _collect(wrapped: PeftModel, prefix: str) -> Adapters:
    """The adapters in peft's modules, under the names of the plain model."""
    peft, root = _peft(), wrapped.get_base_model()
    found, scale = dict[str, Tensor](), 1.0
    for name, layer in root.named_modules():
        if isinstance(layer, peft.tuners.lora.LoraLayer):
            found[f"{prefix}{name}{LORA_A}"] = layer.lora_A[DEFAULT].weight
            found[f"{prefix}{name}{LORA_B}"] = layer.lora_B[DEFAULT].weight
            scale = float(layer.scaling[DEFAULT])
    return Adapters(_in_order(found), scale)


def _in_order(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sorted so that in each block A of all modules come first, then all B. Modules that are multiplied as one then have their
    A next to each other, whatever order a file had."""
    places = {name.rpartition(".")[2]: i for i, name in enumerate(n for names in BESIDE.values() for n in names)}

    def place(name: str) -> tuple[str, bool, int]:
        block, _, leaf = name.removesuffix(LORA_A).removesuffix(LORA_B).rpartition(".")
        return block, name.endswith(LORA_B), places.get(leaf, len(places))

    return {name: tensors[name] for name in sorted(tensors, key=place)}


# ------------------------------------------------------------------------------------------------------------- merging
def merged_params(model: nn.Module, adapters: Adapters, plain: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All parameters of a version with adapters merged in: from `plain`, else from `model`. Merged tensors are on the host; the
    model does not change."""
    params = {**model_params(model), **plain}
    for module, down, up in adapters.modules():
        name = f"{module}.weight"
        params[name] = merged(params[name], down, up, adapters.scale, flip=_flips(model.get_submodule(module))).cpu()
    return params


def _flips(module: nn.Module) -> bool:
    """Whether a module stores its matrix as `[in, out]` (GPT-2 does)."""
    return type(module).__name__ == "Conv1D"


class MergedModel:
    """Loads versions of adapters into a model of plain modules, as `W + scale * B A`. The base weights `W` are kept unchanged,
    because others may read the same memory."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._base: dict[str, Tensor] = {}

    @torch.no_grad()
    def load(self, adapters: Adapters | None) -> None:
        """Merge these adapters into the base weights; None restores the base weights."""
        if adapters is None:
            self.reset()
            return
        for module, down, up in adapters.modules():
            owner = self.model.get_submodule(module)
            parameter = owner.get_parameter("weight")
            if module not in self._base:
                self._base[module] = parameter.data
                parameter.data = torch.empty_like(parameter.data)
            parameter.copy_(merged(self._base[module], down, up, adapters.scale, flip=_flips(owner)))

    def reset(self) -> None:
        """Restore the base weights."""
        for module, base in self._base.items():
            self.model.get_parameter(f"{module}.weight").data = base
        self._base = {}


def merged(base: Tensor, down: Tensor, up: Tensor, scale: float, *, flip: bool = False) -> Tensor:
    """`base + scale * up down`, summed in at least float32. `flip` is for a module that stores its matrix as `[in, out]`."""
    wide = torch.promote_types(base.dtype, torch.float32)
    delta = scale * (up.to(base.device, wide) @ down.to(base.device, wide))
    return (base.to(wide) + (delta.t() if flip else delta)).to(base.dtype)


def save_adapters(model: PreTrainedModel, adapters: Adapters, folder: str) -> None:
    """Write a folder from which peft loads the adapters into `model` (`PeftModel.from_pretrained`)."""
    root, prefix = _root(model)
    modules = [name.removeprefix(prefix) for name, _, _ in adapters.modules()]
    rank = next(down.shape[0] for _, down, _ in adapters.modules())
    leaves = tuple(sorted({name.rpartition(".")[2] for name in modules}))
    config = LoraConfig(rank=rank, alpha=adapters.scale * rank, targets=leaves)
    wrapped = _wrap(_shadow(root), config)
    if _collect(wrapped, prefix).tensors.keys() != adapters.tensors.keys():
        # module names without their layer choose them in every layer; these adapters are in some layers only
        wrapped = _wrap(_shadow(root), replace(config, targets=tuple(modules)))
    Adapters(_collect(wrapped, prefix).tensors, adapters.scale).copy_from(adapters)
    wrapped.save_pretrained(folder)


def _peft() -> ModuleType:
    """The package peft, or a `ConfigError` that says how to install it."""
    try:
        import peft
        import peft.tuners.lora
    except ModuleNotFoundError as error:
        raise ConfigError("learner.lora.rank", ">0", 'adapters need peft; pip install "runnel[llm]"') from error
    module: ModuleType = peft
    return module
