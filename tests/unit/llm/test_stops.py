"""Where completions end: stop texts against a plain search in the whole text, the model's own ends against `generate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.core.contracts.params import ParamSet
from runnel.core.errors import DataError
from runnel.llm.engines.hf import HfEngine
from runnel.llm.engines.native import NativeEngine
from runnel.llm.engines.requests import SamplingConfig, generate, make_request
from runnel.llm.engines.stops import completes
from runnel.llm.model.causal_lm import ModelConfig, build_model, model_params
from runnel.llm.tokenize import CharTokenizer, HFTokenizer
from runnel.run.registry import build, configure, load_recipe

sys.path.insert(0, str(Path(__file__).parent))
from fakes_llm import FakeClient, FakeStream

SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=64)
EMOJI = "\N{GRINNING FACE}"


def byte_level():
    """Bytes as GPT-2 writes them, some of them merged over the edges of characters, and a special token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelled = split.pre_tokenize_str("a" + EMOJI)[0][0]
    merged = [spelled[:2], spelled[2:4], "ab"]
    vocab = {c: i for i, c in enumerate([*alphabet, *merged])}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[(m[0], m[1]) for m in merged]))
    inner.pre_tokenizer, inner.decoder = split, decoders.ByteLevel()
    inner.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    return inner


def byte_fallback():
    """Words with a mark for their space, and bytes for everything else, as Llama 2 has them: the first space is taken away."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    words = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "a", "b", "▁", "▁a", "ab"]
    vocab = {w: i for i, w in enumerate(words)}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a"), ("a", "b")], unk_token="<unk>", byte_fallback=True))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(parts)
    inner.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    return inner


def folder_of(inner, folder, **files):
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>").save_pretrained(str(folder))
    for name, data in files.items():
        (folder / f"{name}.json").write_text(json.dumps(data))
    return HFTokenizer(folder)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    kinds = {"byte level": byte_level(), "byte fallback": byte_fallback()}
    found = {name: folder_of(inner, tmp_path_factory.mktemp("tokens")) for name, inner in kinds.items()}
    return {**found, "bytes": CharTokenizer()}


pieces = st.sampled_from(["a", "b", "ab", " ", "é", "中文", EMOJI, "<|im_end|>", "<eos>", "\n"])


@pytest.mark.parametrize("kind", ["byte level", "byte fallback", "bytes"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_stop_text_ends_where_a_search_in_the_whole_text_first_finds_it(tokenizers, kind, data):
    t = tokenizers[kind]
    stop = data.draw(st.lists(st.lists(pieces, min_size=1, max_size=4).map("".join), min_size=1, max_size=2))
    text = "".join(data.draw(st.lists(pieces, max_size=30)))
    tokens = data.draw(st.lists(st.integers(0, t.vocab_size - 1), max_size=12)) + t.encode(text) + t.encode(stop[0])
    whole = [end for end in range(1, len(tokens) + 1) if any(s in t.spell(tokens[:end]) for s in stop)]
    windowed = [end for end in range(1, len(tokens) + 1) if completes(tokens[:end], stop, t.spell)]
    assert windowed[:1] == whole[:1]


def follow(engine, script):
    """Make an engine write the tokens `script`, over and over."""

    def next_of_script(logits, requests):
        forced = torch.full_like(logits, -torch.inf)
        for row, request in enumerate(requests):
            forced[row, script[len(engine.so_far(request.id)) % len(script)]] = 0.0
        return forced

    engine.hook = next_of_script
    return engine


@pytest.mark.parametrize("kind", [NativeEngine, HfEngine])
def test_an_emoji_and_a_special_token_stop_a_completion(tokenizers, kind):
    """Four tokens are one character of the first, and decoding for people leaves the second out."""
    t = CharTokenizer()
    script = [*t.encode("x" + 5 * EMOJI + "y"), 4, *t.encode("z")]

    model = build_model(SIZES, t.vocab_size, seed=0)
    for stop, length in ((5 * EMOJI, 21), (EMOJI + "y", 22), ("<user>", 23), ("y<user>z", 24)):
        engine = follow(kind(model, num_slots=1, max_length=64, eos_id=2, decode_text=t.spell), script)
        engine.load_params(ParamSet(0, model_params(model)))
        asked = make_request(1, [1, 4], seed=0, max_tokens=40, sampling=SamplingConfig(stop=("never", stop)))
        reply = generate(engine, [asked])[0]
        assert reply.rows["tokens"].tolist() == script[:length]
        assert bool(reply.rows["terminated"])


ENDS = [
    ({"generation_config": {"eos_token_id": [7, 11, 20]}, "config": {}}, [7, 11, 20]),
    ({"generation_config": {"eos_token_id": 20}, "config": {"eos_token_id": 7}}, [20]),
    ({"config": {"eos_token_id": [7, 30]}}, [7, 30]),
    ({"generation_config": {}, "config": {"eos_token_id": 7}}, []),
]


@pytest.mark.parametrize(("files", "ends"), ENDS)
def test_engines_end_where_transformers_generate_does(tmp_path, files, ends):
    from transformers import AutoModelForCausalLM

    model = build_model(SIZES, 300, seed=5)
    model.save_pretrained(str(tmp_path))
    saved = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "generation_config.json").unlink()
    t = folder_of(byte_level(), tmp_path, **{**files, "config": saved | files["config"]})
    assert t.end_ids == tuple(dict.fromkeys((t.eos_id, *ends)))
    theirs, lengths = AutoModelForCausalLM.from_pretrained(str(tmp_path)), []
    with torch.no_grad():
        theirs.get_output_embeddings().weight[ends] *= 4.0  # so that they come up
    assert [HfEngine(theirs, num_slots=1, max_length=40, eos_id=e).end_ids for e in (2, [2, 7, 2])] == [(2,), (2, 7)]
    engines = [kind(theirs, num_slots=8, max_length=40, eos_id=t.end_ids) for kind in (HfEngine, NativeEngine)]
    for engine in engines:
        engine.load_params(ParamSet(0, model_params(theirs)))
    for first in range(12):
        prompt = [first * 9 + 1, first]
        made = theirs.generate(torch.tensor([prompt]), max_new_tokens=30, do_sample=False, pad_token_id=0)[0, 2:].tolist()
        for engine in engines:
            asked = make_request(first, prompt, seed=0, max_tokens=30, sampling=SamplingConfig(0.0))
            assert generate(engine, [asked])[0].rows["tokens"].tolist() == made
        lengths.append(len(made))
    assert not ends or min(lengths) < 30


def test_a_wrong_end_of_generation_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"generation_config.json: eos_token_id = 'x' is not a token's number"):
        folder_of(byte_level(), tmp_path, generation_config={"eos_token_id": "x"})
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(DataError, match=r"generation_config.json is damaged: not JSON"):
        HFTokenizer(tmp_path)


def test_stop_texts_count_in_evaluation_in_chat_and_in_greedy_baselines():
    script = CharTokenizer().encode("abcdefgh")
    small = {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "inner": 32, "max_positions": 64}
    made = {"stop": ["cd"], "max_tokens": 8, "lm": small, "eval": {"episodes": 2, "samples": 1}, "num_prompts": 1}
    experiment = build("remax", configure(load_recipe("remax"), made))
    policy, engine = experiment.policy()
    follow(engine, script)
    assert policy.chat([{"role": "user", "content": "x"}]) == policy.complete("x", deterministic=False) == "abcd"

    evaluation = experiment.evaluation.make()
    client = FakeClient(follow(experiment.evaluation.inferencer(), script))
    client.published[0] = ParamSet(0, model_params(policy.model))
    client.sync()
    result = evaluation.run({"policy": client}, round_index=0)
    assert [s["completion"] for s in result.samples] == ["abcd", "abcd"]
    evaluation.close()

    client = FakeClient(follow(experiment.inference[0].make(), script))
    client.published[0] = ParamSet(0, model_params(policy.model))
    sampler, stream = experiment.actors[0].make(0), FakeStream(experiment.streams[0], limit=1)
    for _ in range(12):
        sampler.step({"policy": client}, {"rollouts": stream})
    arrays = stream.take(1)[0].arrays
    assert set((arrays["row_length"] - arrays["prompt_length"]).tolist()) == {4}
    assert bool(arrays["terminated"].all())
    sampler.close()
