"""What the model sees and says in a conversation: prompts from messages, and messages from replies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from runnel.core.contracts.chat import Message
from runnel.core.errors import ConfigError
from runnel.core.state import State
from runnel.llm.chat.config import DialectName, TalkConfig
from runnel.llm.chat.dialects import DIALECTS, Dialect, dialect_for, results
from runnel.llm.chat.rows import Said
from runnel.llm.chat_template import OURS
from runnel.llm.tokenize import HFTokenizer, PlainTokenizer, Tokenizer, messages_of, strip_end


class PromptMaker:
    """Makes prompts for `tokenizer`, and reads replies. With `talk.history` keep, what was said stays as it is and the new
    messages are appended; with template, the chat template renders all messages again. `of_data`: the first messages are the
    data set's, whose author may name control tokens in plain prompts."""

    def __init__(self, tokenizer: Tokenizer, talk: TalkConfig, *, of_data: bool = False) -> None:
        self._of_data = of_data
        self.tokenizer, self.dialect = tokenizer, make_dialect(tokenizer, talk.dialect)
        self._keep = talk.history == "keep"
        if isinstance(tokenizer, PlainTokenizer) and not self._keep:
            raise ConfigError("talk.history", talk.history, "plain prompts (data.plain) have no chat template; use keep")

    def prompt(self, said: Said, messages: Sequence[Message], new: Sequence[Message], schemas: Sequence[State]) -> list[int]:
        """The next prompt: `messages` are all there are, `new` those since the last reply."""
        tools = schemas if self.dialect.takes_tools else ()
        if said.rows and self._keep:
            return self.tokenizer.extend(said.last, self._written(new), tools)
        written = self._written(messages)
        if schemas and not self.dialect.takes_tools:
            written = self._told(written, self.dialect.describe(schemas))
        if isinstance(self.tokenizer, PlainTokenizer):
            return self.tokenizer.render(written, tools, control=self._of_data)
        return self.tokenizer.render(written, tools)

    def message(self, reply: Sequence[int], *, tools: bool) -> Message:
        """What the assistant said, with its calls of tools where it may make some."""
        ids = strip_end(reply, self.tokenizer)
        if not tools:
            return {"role": "assistant", "content": self.tokenizer.decode(ids)}
        text = self.tokenizer.spell(ids)
        parsed = self.dialect.parse(text)
        out: State = {"role": "assistant", "content": parsed.content}
        if parsed.calls:
            out["tool_calls"] = [dict(call) for call in parsed.calls]
        if parsed.failures:
            out["tool_errors"] = [dict(failure) for failure in parsed.failures]
        if parsed.calls or parsed.failures:
            out["text"] = text  # a later prompt repeats it with what cannot be read, and with what no dialect would write
        return out

    def demonstration(self, message: str | Message) -> tuple[list[int], Message]:
        """A message of a script as the tokens of a reply, and as it is heard."""
        given: Mapping[str, object] = {"content": message} if isinstance(message, str) else message
        content, calls = str(given.get("content", "")), given.get("tool_calls", ())
        assert isinstance(calls, Sequence)
        tokens = self.tokenizer.answer(self.dialect.write(content, calls) if calls else content)
        return tokens, self.message(tokens, tools=bool(calls))

    @staticmethod
    def heard(message: Message) -> Message:
        """What an environment gets of a message."""
        return {"role": message["role"], "content": message["content"]}

    @staticmethod
    def seen(new: Sequence[Message]) -> bytes:
        """New messages as what tells one state from another."""
        return json.dumps([[m["role"], m["content"]] for m in new]).encode()

    def _written(self, messages: Sequence[Message]) -> list[Message]:
        """Messages as the chat template knows them."""
        return messages_of(results(self.dialect, [self._one(m) for m in messages]))

    def _told(self, messages: Sequence[Message], tools: str) -> list[Message]:
        """A conversation whose first message tells of tools, where the chat template cannot: that of the system, or of the user
        where the template knows no other."""
        first, *rest = messages
        if first["role"] == "system":
            return [{"role": "system", "content": f"{first['content']}\n\n{tools}"}, *rest]
        if not isinstance(self.tokenizer, HFTokenizer) or self.tokenizer.takes_system:
            return [{"role": "system", "content": tools}, *messages]
        if first["role"] == "user":
            return [{**first, "content": f"{tools}\n\n{first['content']}"}, *rest]
        return [{"role": "user", "content": tools}, *messages]

    def _one(self, message: Message) -> Message:
        calls = message.get("tool_calls", ())
        text = message.get("text") if message["role"] == "assistant" else None
        shown = calls and self.dialect.takes_tools and not message.get("tool_errors")
        if text is not None and not shown:
            return {"role": message["role"], "content": text}
        if calls and not self.dialect.takes_tools:
            return {"role": message["role"], "content": self.dialect.write(message["content"], calls)}
        return {name: value for name, value in message.items() if name not in OURS}


def make_dialect(tokenizer: Tokenizer, name: DialectName) -> Dialect:
    """How calls of tools are written for this tokenizer."""
    if isinstance(tokenizer, HFTokenizer):
        return dialect_for(tokenizer.inner, name)
    return DIALECTS["hermes" if name == "auto" else name]
