"""Conversations as data sets write them: messages with role and content, or ShareGPT's messages with from and value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runnel.core.errors import DataError

SHAREGPT_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant"}
"""Role for each name in ShareGPT's `from`; other names (system, tool) are roles already."""


def chat_message(value: object, place: str) -> dict[str, str]:
    """One message as role and content.

    >>> chat_message({"from": "human", "value": "hi"}, "line 1")
    {'role': 'user', 'content': 'hi'}
    """
    if isinstance(value, Mapping) and "from" in value and "role" not in value:
        value = {"role": SHAREGPT_ROLES.get(str(value["from"]), value["from"]), "content": value.get("value")}
    if not isinstance(value, Mapping) or not all(isinstance(value.get(k), str) for k in ("role", "content")):
        raise DataError(f"{place}: a message needs a role and a content, both text: {str(value)[:80]}")
    return {"role": value["role"], "content": value["content"]}


def conversation(value: object, place: str) -> list[dict[str, str]]:
    """A checked list of messages."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise DataError(f"{place}: a prompt is text or a list of messages, not {type(value).__name__}")
    return [chat_message(message, place) for message in value]


def chat_prompt(value: object, place: str) -> str | list[dict[str, str]]:
    """A checked prompt: a text, or a conversation whose next turn is the assistant's."""
    if isinstance(value, str):
        return value
    messages = conversation(value, place)
    if messages[-1]["role"] == "assistant":
        fix = "a prompt ends with the user's turn; put the answer into a column of its own"
        raise DataError(f"{place}: the prompt ends with the assistant's turn ({messages[-1]['content'][:40]!r}); {fix}")
    return messages
