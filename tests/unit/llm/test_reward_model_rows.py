"""A reward model judges in RLHF what it was trained on: the same tokens, scored at the same one; in transformers too."""

from __future__ import annotations

import pytest
import torch
from fakes_llm import FakeClient, FakeStream
from made_tokenizers import family

from runnel.core.contracts.params import ParamSet
from runnel.core.errors import DataError
from runnel.llm.engines.native import NativeEngine
from runnel.llm.export import save_scorer
from runnel.llm.model.causal_lm import ModelConfig, ScalarModel, build_model, model_params
from runnel.llm.rewards import scorers
from runnel.llm.rewards.components import RewardComponent
from runnel.llm.sampling.groups import rollout_stream
from runnel.llm.sampling.pairs import pair_rows
from runnel.llm.sampling.sampler import PromptSampler
from runnel.llm.scoring import ScoringPolicy
from runnel.llm.tasks import Example, TextTask
from runnel.llm.tasks.preferences import Pair
from runnel.llm.tokenize import CharTokenizer, make_tokenizer

SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=128)
SYSTEM = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "2 + 2?"}]
KINDS = {
    "pad-is-eos": ("smollm2", False),
    "no-pad": ("llama3-no-pad", False),
    "pad-of-its-own": ("qwen", False),
    "end-is-not-eos": ("qwen-base", False),
    "plain": ("smollm2", True),
    "no-template": ("no-template", True),
}


@pytest.fixture(scope="module", params=list(KINDS))
def trained(request, tmp_path_factory):
    """A reward model as training leaves it, its tokenizer, and the folder that was exported of it."""
    name, plain = KINDS[request.param]
    folder = tmp_path_factory.mktemp("scorer")
    tokenizer = make_tokenizer(family(folder / "tokenizer", name), plain=plain)
    model = ScalarModel(build_model(SIZES, tokenizer.vocab_size, seed=0))
    torch.manual_seed(0)
    torch.nn.init.normal_(model.score.weight)
    save_scorer(build_model(SIZES, tokenizer.vocab_size, seed=0), model_params(model), tokenizer, folder / "model")
    return model, tokenizer, str(folder / "model")


@pytest.mark.parametrize("prompt", ["2 + 2?", SYSTEM, TURNS], ids=["text", "system", "turns"])
def test_the_same_tokens_and_the_same_score_everywhere(trained, prompt):
    from transformers import AutoModelForSequenceClassification

    model, tokenizer, folder = trained
    (row, answer), _ = pair_rows(Pair(prompt, "4", "5"), tokenizer)
    ids = [*row, *answer]
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    assert scorers._load_scorer(folder, "cpu")[1](messages, "4") == ids
    with torch.no_grad():
        by_token = model.score(model.base_model(input_ids=torch.tensor([ids])).last_hidden_state)[0, :, 0].tolist()
    in_training = by_token[-1]
    assert abs(in_training - by_token[-2]) > 1e-3, "another token would not be noticed"
    text = "\n".join(m["content"] for m in messages)
    (in_rlhf,) = scorers.reward_model([text], ["4"], model=folder, prompt_messages=[messages])
    theirs = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        in_transformers = theirs(torch.tensor([ids])).logits.item()
    found = [in_rlhf, in_transformers, ScoringPolicy(model, tokenizer).score(prompt, "4")]
    assert found == pytest.approx([in_training] * 3, abs=1e-5)


def test_batches_in_transformers_are_right_or_refused(trained):
    from transformers import AutoModelForSequenceClassification

    _, tokenizer, folder = trained
    theirs = AutoModelForSequenceClassification.from_pretrained(folder)
    rows = [[*p, *a] for p, a in pair_rows(Pair("2 + 2?", "4", "it is five"), tokenizer)]
    padded = [row + [tokenizer.pad_id] * (max(map(len, rows)) - len(row)) for row in rows]
    if theirs.config.pad_token_id is None:
        with pytest.raises(ValueError, match="batch sizes > 1"):
            theirs(torch.tensor(padded))
        return
    expected = scorers.reward_model(["2 + 2?"] * 2, ["4", "it is five"], model=folder)
    with torch.no_grad():
        assert theirs(torch.tensor(padded)).logits[:, 0].tolist() == pytest.approx(expected, abs=1e-5)


def test_a_row_beyond_the_context_is_refused(trained):
    model, tokenizer, folder = trained
    with pytest.raises(DataError, match=r"have \d+ tokens, and the reward model's context is 128"):
        scorers.reward_model(["x"], ["y" * 128], model=folder)
    with pytest.raises(DataError, match="context is 128"):
        ScoringPolicy(model, tokenizer).score("x", "y" * 128)


def test_the_sampler_hands_messages_over_as_they_are():
    seen = []

    def look(prompts, completions, prompt_messages, **columns):
        seen.extend(zip(prompts, prompt_messages, strict=True))
        return [float(i) for i in range(len(prompts))]

    tokenizer = CharTokenizer()
    part = RewardComponent("look", look, run="inline", messages=True)
    task = TextTask("t", [Example(SYSTEM)], [Example("2?")], [part])
    model = build_model(SIZES, tokenizer.vocab_size, seed=0)
    client = FakeClient(NativeEngine(model, num_slots=2, max_length=64, eos_id=2))
    client.published[0] = ParamSet(0, model_params(model))
    spec = rollout_stream(group_size=2, max_prompt=32, max_tokens=2, rewards=("look",))
    sampler = PromptSampler(task, tokenizer, group_size=2, max_tokens=2, seed=0)
    for _ in range(5):
        sampler.step({"policy": client}, {"rollouts": FakeStream(spec, limit=1)})
    assert seen[:2] == [("Be brief.\n2 + 2?", SYSTEM)] * 2
    assert RewardComponent("r", "reward_model").resolved().messages
