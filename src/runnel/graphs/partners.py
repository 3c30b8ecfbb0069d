"""The partners of a conversation as a run makes them: model, tokenizer and parameters of each, and who asks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from runnel.core.config import override
from runnel.core.errors import ConfigError
from runnel.core.routes import STORED
from runnel.core.stored_policy import parse_stored
from runnel.llm.chat.partners import AGENTS, FROZEN, MODEL, Partner, streams_of
from runnel.llm.checks.sizes import context_of
from runnel.llm.engines.choose import EngineConfig, make_engine
from runnel.llm.engines.requests import Engine
from runnel.llm.model.causal_lm import ModelConfig, build_model
from runnel.llm.model.pretrained import model_folder
from runnel.llm.model.token_model import DTYPES
from runnel.llm.tokenize import Tokenizer, make_tokenizer
from runnel.track.folder import RunFolder

if TYPE_CHECKING:  # transformers takes seconds to import
    from transformers import PreTrainedModel

MakeModel = Callable[[], "PreTrainedModel"]


@dataclass(frozen=True)
class PartnerModel:
    """A partner before it is built: who it is (`frozen`, `model:FOLDER`, `run:...`), where its model comes from, and what
    actors know of it."""

    who: str
    lm: ModelConfig
    known: Partner

    @property
    def params(self) -> str:
        """What its inference stream loads: the policy of a stored run, or nothing beside what it is built with."""
        return self.who if self.who.startswith(STORED) else ""

    def engine(self, config: EngineConfig, own: MakeModel, *, num_slots: int, device: str, seed: int) -> Engine:
        """Its engine. `own` makes the run's model, which is that of `frozen`."""

        def make() -> PreTrainedModel:
            dtype = DTYPES[config.precision_on(device)]
            return build_model(self.lm, self.known.tokenizer.vocab_size, seed=seed, dtype=dtype, device=device)

        return make_engine(
            config,
            own if self.who == FROZEN else make,
            folder=self.lm.path,
            num_slots=num_slots,
            max_length=self.known.max_context,
            eos_id=self.known.tokenizer.end_ids,
            decode_text=self.known.tokenizer.spell,
        )


def partner_models(
    speakers: Mapping[str, str], *, lm: ModelConfig, tokenizer: Tokenizer, plain: bool, max_context: int
) -> dict[str, PartnerModel]:
    """The partners by who they are. `lm` and `tokenizer` are the run's own, `max_context` the most tokens of a conversation."""
    found: dict[str, PartnerModel] = {}
    for who, stream in streams_of(speakers).items():
        model, speaks = (lm, tokenizer) if who == FROZEN else _model_of(who, plain)
        reads = context_of(model.path) if model.path else model.max_positions
        known = Partner(stream, speaks, min(max_context, reads or max_context))
        found[who] = PartnerModel(who, model, known)
    return found


def _model_of(who: str, plain: bool) -> tuple[ModelConfig, Tokenizer]:
    """Config and tokenizer of a folder's model, or of the model that a run trained."""
    try:
        if who.startswith(MODEL):
            folder = model_folder(who.removeprefix(MODEL))
            return ModelConfig(path=folder), make_tokenizer(folder, plain=plain)
        settings = RunFolder.open(parse_stored(who).folder).read_config()
        if not isinstance(settings.get("lm"), Mapping):
            raise ConfigError(AGENTS, who, "that run trained no language model; give one that did")
        folder, data = model_folder(str(settings.get("model", ""))), settings.get("data", {})
        plain = bool(isinstance(data, Mapping) and data.get("plain"))
        return replace(override(ModelConfig(), settings["lm"]), path=folder), make_tokenizer(folder, plain=plain)
    except ConfigError as error:
        raise ConfigError(AGENTS, who, error.fix) from error
