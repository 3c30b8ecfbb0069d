"""Folders that a reference policy is made of, compared with the policy before a run starts."""

from __future__ import annotations

from collections.abc import Sequence

from runnel.core.contracts.chat import Message
from runnel.core.errors import ConfigError
from runnel.llm.model.architecture import differing, model_config
from runnel.llm.model.causal_lm import ModelConfig
from runnel.llm.model.pretrained import model_folder
from runnel.llm.tokenize import Tokenizer, make_tokenizer

FIELD = "learner.reference"


def check_references(
    folders: Sequence[str], tokenizer: Tokenizer, asked: Sequence[tuple[Sequence[Message], str]], *, plain: bool
) -> None:
    """Raise a `ConfigError` for a folder without a whole model, for a model that reads `asked` (prompts with answers) in other
    tokens than the policy's `tokenizer`, and for models that have no mean. No weights are loaded."""
    paths = [_folder(name) for name in folders]
    for name, folder in zip(folders, paths, strict=True):
        theirs = make_tokenizer(folder, plain=plain)
        if theirs.vocab_size != tokenizer.vocab_size:
            sizes = f"its vocabulary has {theirs.vocab_size} tokens, and the policy's {tokenizer.vocab_size}"
            raise ConfigError(FIELD, name, f"{sizes}: it would judge other tokens; give a model with the policy's tokenizer")
        for messages, answer in asked:
            if _row(theirs, messages, answer) != _row(tokenizer, messages, answer):
                fix = "its tokenizer or chat template makes other tokens of a prompt or answer than the policy's"
                raise ConfigError(FIELD, name, f"{fix}; give a model with the policy's tokenizer")
    first, *others = [model_config(ModelConfig(path=folder), 0) for folder in paths]
    for name, config in zip(folders[1:], others, strict=True):
        if odd := differing(first, config):
            field, (ours, its) = next(iter(odd.items()))
            fix = (
                f"its {field} is {its}, and that of {folders[0]} {ours}, so they have no mean; give models of one architecture"
            )
            raise ConfigError(FIELD, name, fix)


def _folder(name: str) -> str:
    """The folder of a model; `model_folder` speaks of the policy's."""
    if not name:
        raise ConfigError(FIELD, name, "a name is empty; give the folder of a model")
    try:
        return model_folder(name)
    except ConfigError as error:
        raise ConfigError(FIELD, name, error.fix) from error


def _row(tokenizer: Tokenizer, messages: Sequence[Message], answer: str) -> list[int]:
    return [*tokenizer.render(messages), *tokenizer.answer(answer)]
