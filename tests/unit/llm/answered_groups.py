"""Groups of completions of prompts with answers, for tests of what demonstrations do in them."""

from __future__ import annotations

from fakes_llm import FakeClient, FakeStream

from runnel.core.contracts.params import ParamSet
from runnel.llm.engines.native import NativeEngine
from runnel.llm.model.causal_lm import ModelConfig, build_model, model_params
from runnel.llm.sampling.groups import rollout_stream
from runnel.llm.tasks import Example, TextTask
from runnel.llm.tokenize import CharTokenizer
from runnel.run import registry

TOKENIZER = CharTokenizer()
SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=64)
N, MAX_TOKENS, ANSWER = 2, 6, "abcd"
"""An answer has five tokens with its end: one to four of them are given."""
TASKS = """
import runnel as rl

ROWS = [rl.Example(f"q{i}") for i in range(8)]
SAID = [rl.Example(f"q{i}", "ab") for i in range(8)]


def none(prompts, completions, **columns):
    return [0.0 for _ in completions]


def each_token(prompts, completions, completion_ids, **columns):
    return [[0.0 for _ in ids] for ids in completion_ids]


def bare():
    return rl.TextTask("bare", ROWS, [rl.Example("held")], none, max_tokens=4)


def by_token():
    part = rl.llm.RewardComponent("each", each_token, level="token")
    return rl.TextTask("tokens", SAID, [rl.Example("held", "ab")], [part], max_tokens=4)
"""


def task_of(judged=None, answers=True):
    train = [Example(f"q{i}", ANSWER if answers else None, {"number": i}) for i in range(40)]

    def reward(prompts, completions, number):
        if judged is not None:
            judged.extend(completions)
        return [float(len(c)) for c in completions]

    return TextTask("reset", train, [Example("held", ANSWER, {"number": 0})], reward)


def client_of():
    model = build_model(SIZES, TOKENIZER.vocab_size, seed=0)
    client = FakeClient(NativeEngine(model, num_slots=8, max_length=32, eos_id=2))
    client.published[0] = ParamSet(0, model_params(model))
    return client


def stream_of(num):
    return FakeStream(rollout_stream(group_size=N, max_prompt=12, max_tokens=MAX_TOKENS, capacity=num), limit=num)


def build(recipe="grpo", **settings):
    tiny = {"lm": {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "inner": 32}, "track": ()}
    return registry.build(recipe, registry.configure(registry.load_recipe(recipe), {**tiny, **settings}))
