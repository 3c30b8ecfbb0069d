from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from runnel.core.errors import ConfigError, DataError
from runnel.llm.checks.sizes import MEASURED, Sizes, context_of, lost_texts, measure, some
from runnel.llm.sampling.demos import DemoSampler
from runnel.llm.sampling.groups import demo_stream
from runnel.llm.tasks import Example, TextTask
from runnel.llm.tokenize import CharTokenizer

sys.path.insert(0, str(Path(__file__).parent))
from fakes_llm import FakeStream

TOKENIZER = CharTokenizer()


def task_of(train, held=("z",), **kwargs):
    examples = [e if isinstance(e, Example) else Example(e, "ab") for e in train]
    return TextTask("t", examples, [Example(p, "ab") for p in held], lambda p, c: [0.0], max_tokens=8, **kwargs)


def test_the_longest_of_each_kind():
    task = task_of(["a", "aaaa"])
    assert measure(task, TOKENIZER) == Sizes(prompt=4 + 3, completion=8, demo=7 + 3)
    assert measure(task, TOKENIZER, max_tokens=5, max_prompt=20).prompt == 20


def test_a_million_prompts_are_not_all_rendered():
    class Lazy(list):
        made = 0

        def __len__(self):
            return 10**6

        def __getitem__(self, i):
            Lazy.made += 1
            return Example(f"prompt {i}", "x")

    lazy = Lazy()
    assert len(some(lazy, MEASURED)) <= MEASURED
    assert Lazy.made <= MEASURED + 1


def test_prompts_beyond_the_sample_have_some_room():
    task = task_of(["a" * 47 for _ in range(3 * MEASURED)])
    assert measure(task, TOKENIZER).prompt == int(1.1 * 50)


def test_a_prompt_longer_than_the_context():
    task = task_of(["a" * 10, "a" * 100])
    assert measure(task, TOKENIZER, context=40).prompt == 32
    with pytest.raises(ConfigError, match=r"max_tokens = 8: the shortest of 2 prompts.*context is 20.*lower max_tokens"):
        measure(task_of(["a" * 30], held=["b" * 30]), TOKENIZER, context=20)


def test_context_and_lost_texts(tmp_path):
    for config, context in (
        ({"model_type": "llama", "max_position_embeddings": 77}, 77),
        ({"model_type": "gpt2", "n_positions": 66}, 66),
        ({"model_type": "mpt", "max_seq_len": 55}, 55),
        ({"model_type": "gemma3", "text_config": {"max_position_embeddings": 44}}, 44),
        ({"model_type": "mamba"}, None),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert context_of(str(tmp_path)) == context
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"its config\.json cannot be read"):
        context_of(str(tmp_path))
    assert lost_texts(task_of(["añ", "b"]), TOKENIZER) == []


def test_demonstrations_that_do_not_fit_are_passed_over():
    train = [Example("a", "b"), Example("c", "d"), Example("e" * 50, "f")]
    stream = FakeStream(demo_stream(rows=2, max_length=12, capacity=4))
    sampler = DemoSampler(task_of(train), TOKENIZER, seed=0)
    for _ in range(4):
        sampler.step({}, {"demos": stream})
    assert len(stream.committed) == 4
    assert any("passed over a demonstration: 55 tokens" in e["text"] for e in sampler.events())
    long = DemoSampler(task_of([*train, Example("e" * 9, "f")]), TOKENIZER, seed=0, max_length=10)
    stream = FakeStream(demo_stream(rows=4, max_length=30, capacity=8))
    for _ in range(8):
        long.step({}, {"demos": stream})
    assert len(stream.committed) == 8
    assert max(int(s.arrays["row_length"].max()) for s in stream.committed) == 6
    assert any(e["text"].endswith("14 tokens, room for 10 (train example 3)") for e in long.events())
    with pytest.raises(DataError, match="100 demonstrations in a row do not fit"):
        DemoSampler(task_of([Example("e" * 50, "f")]), TOKENIZER, seed=0).step({}, {"demos": stream_of()})


def stream_of():
    return FakeStream(demo_stream(rows=2, max_length=12, capacity=4))
