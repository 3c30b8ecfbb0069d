"""Low-rank adapters: which modules have some, what they start from (peft says both), how they travel, and how they are merged.

A version of a model with adapters is the adapters alone: `<module>.lora_A.weight`, `<module>.lora_B.weight` and their scale.
Whoever has the weights that they stand beside puts them there (`Decoder.adapt`), or merges them into a model of plain modules.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from runnel.core.bounds import bounded, check_bounds
from runnel.core.errors import ConfigError
from runnel.core.resuming import OnResume, stays
from runnel.llm.model.causal_lm import copy_model, model_params
from runnel.llm.model.decoder import BESIDE, LORA_A, LORA_B
from runnel.llm.model.pack import pack_tensors

SCALE = "lora.scale"
"""The name under which the scale of adapters travels; whatever has it is a version of adapters."""
DEFAULT = "default"


@dataclass(frozen=True)
class LoraConfig:
    """Train low-rank adapters beside frozen weights (Hu et al. 2021, arXiv:2106.09685); peft says where and from what."""

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
    """The adapters of a model by name, `lora_A [rank, in]` and `lora_B [out, rank]` of each module; `whole` are names of plain
    parameters that are trained with them (the head of a model that scores)."""

    tensors: dict[str, Tensor]
    scale: float
    whole: tuple[str, ...] = ()

    @staticmethod
    def split(params: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Adapters | None]:
        """What was published, as plain parameters and adapters; None where it has none."""
        if SCALE not in params:
            return dict(params), None
        mine = {name: value for name, value in params.items() if name.endswith((LORA_A, LORA_B))}
        plain = {name: value for name, value in params.items() if name != SCALE and name not in mine}
        return plain, Adapters(mine, float(params[SCALE]))

    def params(self) -> dict[str, Tensor]:
        """As they are published: live tensors."""
        return {**{n: t.data for n, t in self.tensors.items()}, SCALE: torch.tensor(self.scale, dtype=torch.float64)}

    def modules(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Each module's name, A and B."""
        for name, down in self.tensors.items():
            if name.endswith(LORA_A):
                module = name.removesuffix(LORA_A)
                yield module, down.data, self.tensors[module + LORA_B].data

    def own(self, *, dtype: torch.dtype, device: str | torch.device) -> Adapters:
        """The same values in memory of their own, laid out as a decoder reads them."""
        parts = _in_order({n: t.detach() for n, t in self.tensors.items() if n not in self.whole})
        pack_tensors(parts, dtype=dtype, device=device)
        return Adapters(parts, self.scale)

    @torch.no_grad()
    def take(self, other: Adapters) -> None:
        """The values of others of the same modules."""
        for name, value in other.tensors.items():
            self.tensors[name].copy_(value)

    def has_names_of(self, other: Adapters) -> bool:
        return self.scale == other.scale and self.tensors.keys() == other.tensors.keys()


# -------------------------------------------------------------------------------------------------------------- making
def make_adapters(model: Any, config: LoraConfig, *, seed: int = 0) -> Adapters:
    """New adapters for `model`, with the values that peft gives them after `seed`; the model itself is not touched.

    A new adapter changes nothing: B starts at 0.
    """
    root, prefix = _root(model)
    wrapped = _wrap(_shadow(root), config, list(config.targets) or "all-linear", seed)
    return _collect(wrapped, prefix)


def check_adapters(config: Any, lora: LoraConfig) -> None:
    """Raise a `ConfigError` where adapters cannot stand as `lora` says beside a model of this transformers config: before
    anything starts, without its weights."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    make_adapters(model, lora)


def wrap_modules(model: Any, config: LoraConfig, *, seed: int = 0) -> Adapters:
    """The same adapters, through peft's modules in `model`, in place: for families that the decoder does not know. A head that
    gives one number is trained with them, whole."""
    root, prefix = _root(model)
    adapters = _collect(_wrap(root, config, list(config.targets) or "all-linear", seed), prefix)
    if root is not model:
        adapters.tensors["score.weight"] = model.score.weight
        adapters.whole = ("score.weight",)
    return adapters


def plain_names(model: Any) -> dict[str, Tensor]:
    """The parameters of a model beside its adapters, by the names that they had before `wrap_modules`."""
    return {n.replace(".base_layer.", "."): p.data for n, p in model.named_parameters() if ".lora_" not in n}


def unwrapped(model: Any) -> Any:
    """A plain copy of a model that `wrap_modules` has changed, with the adapters merged in."""
    root, _ = _root(twin := copy_model(model))
    for name, layer in list(root.named_modules()):
        if isinstance(layer, _peft().tuners.lora.LoraLayer):
            layer.merge()
            root.set_submodule(name, layer.get_base_layer())
    return twin


def _root(model: Any) -> tuple[Any, str]:
    """What peft is given: a model of transformers, and how names of its modules go on from those of `model`."""
    if hasattr(model, "get_output_embeddings"):
        return model, ""
    return model.base_model, model.base_model_prefix + "."


def _shadow(model: Any) -> Any:
    """A copy in which every parameter has its shape and no memory."""
    empty = {
        id(p): nn.Parameter(torch.empty(1, dtype=torch.float32).expand(p.shape), requires_grad=False)
        for p in model.parameters()
    }
    return copy.deepcopy(model, dict(empty))


def _wrap(root: Any, config: LoraConfig, targets: Sequence[str] | str, seed: int) -> Any:
    peft = _peft()
    kind = "CAUSAL_LM" if getattr(root, "get_output_embeddings", lambda: None)() is not None else None
    wanted = peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=targets, task_type=kind)
    embedding, names = root.get_input_embeddings().weight, [name for name, _ in root.named_modules()]
    for target in config.targets:
        if not any(name == target or name.endswith(f".{target}") for name in names):
            raise ConfigError("learner.lora.targets", config.targets, f"the model has no layer {target!r}; leave it out")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            wrapped = peft.get_peft_model(root, wanted)
        except ValueError as error:
            raise ConfigError("learner.lora.targets", config.targets, str(error).splitlines()[0]) from error
    for name, layer in root.named_modules():
        if isinstance(layer, peft.tuners.lora.LoraLayer) and layer.base_layer.weight is embedding:
            fix = f"{name} is the token embedding (or tied to it), beside which no adapter is trained; leave it out"
            raise ConfigError("learner.lora.targets", config.targets, fix)
    return wrapped


def _collect(wrapped: Any, prefix: str) -> Adapters:
    """The adapters in peft's modules, under names without its own parts."""
    peft, root = _peft(), wrapped.get_base_model()
    found, scale = dict[str, Tensor](), 1.0
    for name, layer in root.named_modules():
        if isinstance(layer, peft.tuners.lora.LoraLayer):
            found[f"{prefix}{name}{LORA_A}"] = layer.lora_A[DEFAULT].weight
            found[f"{prefix}{name}{LORA_B}"] = layer.lora_B[DEFAULT].weight
            scale = float(layer.scaling[DEFAULT])
    return Adapters(_in_order(found), scale)


def _in_order(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Under one block, A of all modules and then B of all: neighbours that are multiplied as one then have A in one piece,
    whatever order a file had."""
    places = {name.rpartition(".")[2]: i for i, name in enumerate(n for names in BESIDE.values() for n in names)}

    def place(name: str) -> tuple[str, bool, int]:
        block, _, leaf = name.removesuffix(LORA_A).removesuffix(LORA_B).rpartition(".")
        return block, name.endswith(LORA_B), places.get(leaf, len(places))

    return {name: tensors[name] for name in sorted(tensors, key=place)}


# ------------------------------------------------------------------------------------------------------------- merging
def merged_params(model: Any, adapters: Adapters, plain: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All plain parameters of a version of adapters: those of `plain`, else of `model`, with the adapters merged in; what is
    merged is on the host. The model stays as it is."""
    whole = {**model_params(model), **plain}
    for module, down, up in adapters.modules():
        name = f"{module}.weight"
        whole[name] = merged(whole[name], down, up, adapters.scale, flip=_flips(model.get_submodule(module))).cpu()
    return whole


def _flips(module: Any) -> bool:
    """Whether a module keeps its matrix as `[in, out]`."""
    return type(module).__name__ == "Conv1D"


class MergedModel:
    """A model of plain modules that takes versions of adapters: `W + scale * B A`. The weights that it had are kept, not
    written to: others may read them too."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._base: dict[str, Tensor] = {}

    @torch.no_grad()
    def load(self, adapters: Adapters | None) -> None:
        """The weights as this version has them; None: as they were."""
        if adapters is None:
            self.reset()
            return
        for module, down, up in adapters.modules():
            owner = self.model.get_submodule(module)
            parameter: Tensor = owner.weight
            if module not in self._base:
                self._base[module] = parameter.data
                parameter.data = torch.empty_like(parameter.data)
            parameter.copy_(merged(self._base[module], down, up, adapters.scale, flip=_flips(owner)))

    def reset(self) -> None:
        """Every weight is what it was before adapters came."""
        for module, base in self._base.items():
            self.model.get_submodule(module).weight.data = base
        self._base = {}


def merged(base: Tensor, down: Tensor, up: Tensor, scale: float, *, flip: bool = False) -> Tensor:
    """`base + scale * up down`, summed in at least float32; `flip`: of a module that keeps its matrix as `[in, out]`."""
    wide = torch.promote_types(base.dtype, torch.float32)
    delta = scale * (up.to(base.device, wide) @ down.to(base.device, wide))
    return (base.to(wide) + (delta.t() if flip else delta)).to(base.dtype)


def save_adapters(model: Any, adapters: Adapters, folder: str) -> None:
    """A folder that peft loads beside `model` (`PeftModel.from_pretrained`)."""
    root, prefix = _root(model)
    modules = [name.removeprefix(prefix) for name, _, _ in adapters.modules()]
    rank = next(down.shape[0] for _, down, _ in adapters.modules())
    config = LoraConfig(rank=rank, alpha=adapters.scale * rank)
    wrapped = _wrap(_shadow(root), config, sorted({name.rpartition(".")[2] for name in modules}), 0)
    if _collect(wrapped, prefix).tensors.keys() != adapters.tensors.keys():  # not in every layer
        wrapped = _wrap(_shadow(root), config, modules, 0)
    Adapters(_collect(wrapped, prefix).tensors, adapters.scale).take(adapters)
    wrapped.save_pretrained(folder)


def _peft() -> Any:
    try:
        import peft
        import peft.tuners.lora
    except ModuleNotFoundError as error:
        raise ConfigError("learner.lora.rank", ">0", 'adapters need peft; pip install "runnel[llm]"') from error
    return peft
