"""Trajectories of several turns and rows: accounts count trajectories, training counts rows, credit is the trajectory's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from made_tokens import VOCAB, group, talk
from test_group_recording import Letters
from test_token_algorithms import ALGORITHMS, ON_PAIRS, ON_RATED

from runnel.core.contracts.learning import SingleProcess
from runnel.core.errors import DataError
from runnel.core.sharding.batch_split import cut
from runnel.llm.algorithms.base import aggregate
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.algorithms.ppo import TokenPPO, TokenPPOConfig, token_rewards
from runnel.llm.learning.batches import join_rows, merge, token_owner
from runnel.llm.learning.drift import version_stats
from runnel.llm.learning.in_parts import TokenLearnerInParts
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.learning.recording import GroupRecorder
from runnel.llm.model.causal_lm import ModelConfig, build_model
from runnel.llm.sampling.pairs import PairWriter
from runnel.llm.tasks import Example, TextTask

SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=64)
REWARDS = ([1.0, 0.0, 0.5], [0.0, 3.0, 0.0])
ON_ROLLOUTS = [name for name in ALGORITHMS if name not in (*ON_PAIRS, *ON_RATED, "sft")]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def learner_of(name, kind=TokenLearner, recorder=None, **changes):
    config = TokenLearnerConfig(max_mismatch=1e9, precision="float64", max_grad_norm=1e9, warmup_updates=0, **changes)
    algorithms = {"rollouts": ALGORITHMS[name]()}
    return kind(config, build_model(SIZES, VOCAB, seed=0), algorithms=algorithms, recorder=recorder)


def gradients(learner):
    models = [m.model for m in (learner.policy, learner.critic) if m is not None]
    return torch.cat([p.grad.flatten() for model in models for p in model.parameters() if p.grad is not None])


def batch(rows_of, name=""):
    rng = np.random.default_rng(7)
    segments = [talk(rng, rewards, rows_of) for rewards in REWARDS]
    if name == "remax":
        for segment in segments:
            first = segment.arrays["row_owner"] == 0
            segment.arrays["loss_mask"] &= ~torch.repeat_interleave(first, segment.arrays["row_length"])
    return segments


@pytest.mark.parametrize("budget", [40, 8192])
@pytest.mark.parametrize("name", ON_ROLLOUTS)
def test_a_conversation_trains_alike_as_one_row_and_as_a_row_for_each_turn(name, budget):
    """A causal model gives a token the same log-probability in both, so every algorithm must give the same gradient."""
    found, metrics = {}, {}
    for rows_of in ("trajectory", "turn"):
        learner = learner_of(name, micro_batch_tokens=budget)
        some = batch(rows_of, name)
        metrics[rows_of] = learner.update(learner.prepare({"rollouts": some}, progress=0.0)).metrics
        found[rows_of] = gradients(learner)
    assert found["trajectory"].abs().max() > 1e-4
    assert torch.allclose(found["trajectory"], found["turn"], rtol=1e-5, atol=1e-8)
    rows = {rows_of: made.pop("rows_per_trajectory", 1.0) for rows_of, made in metrics.items()}
    assert name in ("online_dpo", "rebel", "inpo") or rows["turn"] > rows["trajectory"] == 1.0
    for key, value in metrics["trajectory"].items():
        assert metrics["turn"][key] == pytest.approx(value, rel=1e-5, abs=1e-7), key


@pytest.mark.parametrize("name", ["grpo", "gspo", "dapo", "turn_ppo, raw", "spa"])
def test_segments_that_are_taken_one_by_one_give_the_step_of_all(name):
    whole, parts = learner_of(name), learner_of(name, TokenLearnerInParts, in_parts=True)
    expected = whole.update(whole.prepare({"rollouts": batch("turn")}, progress=0.0)).metrics
    for segment in batch("turn"):
        parts.add_part({"rollouts": [segment]}, progress=0.0)
    found = parts.finish_parts().metrics
    assert torch.allclose(gradients(whole), gradients(parts), rtol=1e-5, atol=1e-8)
    for key in (k for k in expected if k.startswith(("loss/", "value/", "progress/"))):
        assert found[key] == pytest.approx(expected[key], rel=1e-5), key


@pytest.mark.parametrize("name", ON_ROLLOUTS)
def test_completions_of_one_turn_train_alike_in_a_stream_of_conversations(name):
    """To the last bit."""
    found = []
    for more in ({}, {"max_turns": 3, "max_rows": 2}):
        rng, learner = np.random.default_rng(3), learner_of(name, num_minibatches=2)
        for _ in range(2):
            some = [group(rng, rewards, greedy_first=name == "remax", **more) for rewards in REWARDS]
            for segment in some if more else ():
                of_turns(segment)
            learner.update(learner.prepare({"rollouts": some}, progress=0.0))
        found.append(torch.cat([p.flatten() for p in learner.params().values()]))
    assert torch.equal(*found)


def of_turns(segment):
    """Rows of a plain group are its trajectories."""
    assert segment.arrays["row_owner"].tolist() == segment.arrays["turn_row"].tolist() == [0, 1, 2]
    answers = torch.tensor([int(m.sum()) for m in segment.arrays["loss_mask"].split(segment.arrays["row_length"].tolist())])
    assert torch.equal(segment.arrays["turn_end"], segment.arrays["row_length"])
    assert bool((segment.arrays["turn_end"] - segment.arrays["turn_start"] >= answers).all())


def test_joined_places_count_through_all_segments():
    segments = batch("turn")
    rows = join_rows(segments)
    first, second = (s.header.used for s in segments)
    assert rows["row_owner"].tolist() == [*segments[0].arrays["row_owner"], *(segments[1].arrays["row_owner"] + 3)]
    assert rows["turn_row"].tolist() == [*segments[0].arrays["turn_row"], *(segments[1].arrays["turn_row"] + first["R"])]
    assert rows["group"].tolist() == [0, 0, 0, 1, 1, 1]
    assert rows["task_id"].tolist() == [-1] * 6
    assert rows["row_start"].tolist()[first["R"]] == first["N"]
    assert len(token_owner(rows)) == first["N"] + second["N"]


@pytest.mark.parametrize("parts", [1, 3])
def test_parts_of_ranks_joined_are_the_rows_of_the_batch(parts):
    segments = batch("turn")
    whole = join_rows(segments)
    pieces = join_rows([cut(segment, i, parts) for segment in segments for i in range(parts)])
    for name in whole.keys() - {"group"}:
        assert torch.equal(whole[name], pieces[name]), name


def test_rewards_of_turns_lie_at_their_last_tokens_and_add_up():
    segment = talk(np.random.default_rng(5), [1.0, 0.0, 2.0], "turn", turn_rewards=("win",))
    rows = join_rows([segment])
    turns, owner = segment.arrays["rewards/win"], segment.arrays["row_owner"][segment.arrays["turn_row"]]
    assert rows["rewards/win"].tolist() == [float(turns[owner == b].sum()) for b in range(3)]
    assert rows["turn_rewards/win"].tolist() == turns.tolist()
    ends = [int(rows["row_start"][r] + e) - 1 for r, e in zip(rows["turn_row"], rows["turn_end"], strict=True)]
    assert rows["token_rewards/win"][ends].tolist() == turns.tolist()
    assert float(rows["token_rewards/win"].sum()) == float(turns.sum())
    earned = token_rewards(TokenPPO(TokenPPOConfig(), channels={"win": 1.0, "exact": 10.0}), rows)
    expected = rows["token_rewards/win"].clone()
    for trajectory, reward in enumerate(segment.arrays["rewards/exact"].tolist()):
        expected[ends[int((owner == trajectory).nonzero().max())]] += 10.0 * reward
    assert torch.equal(earned, expected)


def test_a_trajectory_counts_once_however_many_rows_it_has():
    rng = np.random.default_rng(11)
    lengths = torch.tensor(rng.integers(1, 7, size=9))
    owner = torch.tensor([0, 0, 0, 1, 2, 2, 3, 3, 4])
    mask = torch.tensor(rng.random(int(lengths.sum())) < 0.6)
    of_token = torch.repeat_interleave(owner, lengths)
    mask[of_token == 3] = False  # a baseline: nothing of it trains
    for how, constant in (("token", 1.0), ("sequence", 1.0), ("sum", 1.0), ("constant", 6.0)):
        weight, share = aggregate(mask, lengths, owner, how, constant=constant)
        for b in range(5):
            trained = int((mask & (of_token == b)).sum())
            total = {"token": trained, "constant": constant * (trained > 0)}.get(how, float(trained > 0))
            assert float(share[owner == b].sum()) == pytest.approx(total)
            weighed = float(weight[of_token == b].sum())
            assert weighed == pytest.approx(min(trained, 1) if how == "sequence" else trained)


def test_a_conversation_is_told_with_its_turns_and_rows():
    recorder = GroupRecorder(Letters(), every=1, channels={"exact": 1.0})
    segment = talk(np.random.default_rng(5), [1.0, 0.0, 2.0], "turn", turn_rewards=("win",))
    learner = learner_of("dr_grpo", recorder=recorder)
    (event,) = learner.update(learner.prepare({"rollouts": [segment]}, progress=0.0)).events
    a = segment.arrays
    assert [row["reward"] for row in event["rows"]] == [1.0, 0.0, 2.0]
    for b, told in enumerate(event["rows"]):
        rows = [r for r, owner in enumerate(a["row_owner"].tolist()) if owner == b]
        spans = [(int(a["row_start"][r]), int(a["row_start"][r] + a["row_length"][r])) for r in rows]
        known = [
            int(a["prompt_length"][rows[0]]),
            *(e - s for s, e in spans[:-1]),
        ]  # the rest of a row begins as the one before
        firsts = [s + n for (s, _), n in zip(spans, known, strict=True)]
        places = [p for first, (_, e) in zip(firsts, spans, strict=True) for p in range(first, e)]
        assert told["ids"] == a["tokens"][places].tolist()
        assert told["mask"] == a["loss_mask"][places].int().tolist()
        assert told.get("row_starts", []) == [places.index(first) for first in firsts[1:]]
        for i, row in enumerate(told.get("rows", [])):
            parent, shared = (None, 0) if i == 0 else (i - 1, known[i])
            assert row == {"start": places.index(firsts[i]), "parent": parent, "shared": shared, "after": i - 1}
        turns = [u for u, r in enumerate(a["turn_row"].tolist()) if r in rows]
        assert [t["rewards"]["win"] for t in told["turns"]] == a["rewards/win"][turns].tolist()
        for t in told["turns"]:
            assert told["mask"][t["start"] : t["end"]] == [1] * (t["end"] - t["start"])
        assert sum(t["end"] - t["start"] for t in told["turns"]) == sum(told["mask"])
        assert all((x is None) == (m == 0) for x, m in zip(told["learner_logprob"], told["mask"], strict=True))


def test_ages_are_those_of_the_trajectory():
    """A first turn of version 2 waits in flight for the last one, of version 5, in whichever row that is."""
    found = []
    for rows_of in ("trajectory", "turn"):
        rows = join_rows([talk(np.random.default_rng(5), [1.0, 0.0, 2.0], rows_of, versions=(2, 3, 3, 5))])
        batch = merge([GRPO(GRPOConfig(), channels={"exact": 1.0}).annotate(rows, SingleProcess())])
        found.append(version_stats(batch, 6))
    assert found[0] == found[1]
    assert found[0]["version_span"] == 4.0
    assert found[0]["staleness/in_flight_max"] == 3.0


def test_what_cannot_be_trained_is_refused():
    segment = talk(np.random.default_rng(5), [1.0, 0.0], "turn")
    segment.arrays["row_owner"] = segment.arrays["row_owner"].flip(0)
    with pytest.raises(DataError, match="row_owner must not fall"):
        join_rows([segment])
    writer = PairWriter("pairs.jsonl", build_model(SIZES, VOCAB, seed=0), Letters(), task=TASK)
    with pytest.raises(DataError, match="several rows a trajectory"):
        writer.prepare({"rollouts": [talk(np.random.default_rng(5), [1.0, 0.0], "turn")]}, progress=0.0)


TASK = TextTask("t", [Example("first")], [Example("second")], lambda prompts, completions: [0.0])
