"""A bandit of two turns: without luck all credit solves it, with luck only credit by turn does in its budget. Nothing is decoded: a tiny model's own probabilities are
sampled, and the learner gets the conversations as segments.

The first word pays +6 or -6 by chance, whatever it is. The second pays 1 if it is the right one of eight. Credit of whole
trajectories pushes the second word by the luck of the first: its mean is right, and its noise is some twenty times as large.
Credit by turn compares second words with second words.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from runnel.core.records import Header, Segment, trim
from runnel.llm.algorithms.base import PolicyAlgorithm
from runnel.llm.algorithms.gigpo import GiGPO, GiGPOConfig
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.algorithms.grpo_roc import GRPORoC, GRPORoCConfig
from runnel.llm.algorithms.loop import LOOP, LOOPConfig
from runnel.llm.algorithms.spa import SPA, SPAConfig
from runnel.llm.algorithms.turn_ppo import TurnPPO, TurnPPOConfig
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.model.causal_lm import ModelConfig, build_model
from runnel.llm.sampling.groups import rollout_stream

WORDS, START, ROOM, RIGHT, LUCK = 8, 0, 1, 5, 6.0
SIZE, GROUPS, UPDATES = 8, 8, 60
MODEL = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=8)
CHANNELS = {"luck": 1.0, "right": 1.0}
BOTH = {"rewards": tuple(CHANNELS), "turn_rewards": tuple(CHANNELS)}
STREAM = rollout_stream(group_size=SIZE, max_prompt=2, max_tokens=2, max_turns=2, **BOTH)
ALGORITHMS: dict[str, Callable[[], PolicyAlgorithm]] = {
    "grpo": lambda: GRPO(GRPOConfig(), channels=CHANNELS),
    "gigpo": lambda: GiGPO(GiGPOConfig(), channels=CHANNELS),
    "turn_ppo": lambda: TurnPPO(TurnPPOConfig(), channels=CHANNELS),
    "loop": lambda: LOOP(LOOPConfig(), channels=CHANNELS),
    "grpo_roc": lambda: GRPORoC(GRPORoCConfig(), channels=CHANNELS),
    "spa": lambda: SPA(SPAConfig(), channels=CHANNELS),
}


def logprobs(learner: TokenLearner) -> tuple[np.ndarray, np.ndarray]:
    """Of the first words `[8]`, and of the second ones after each first `[8, 8]`."""
    rows = torch.tensor([[START, word, ROOM] for word in range(WORDS)])
    with torch.no_grad():
        found = learner.policy.model(rows).logits.double().log_softmax(-1)
    return found[0, 0].numpy(), found[:, 2].numpy()


def conversations(rng: np.random.Generator, first: np.ndarray, second: np.ndarray, version: int, luck: float) -> Segment:
    """A group: one row `start, word, room, word` each."""
    a = STREAM.allocate()
    words = rng.choice(WORDS, size=SIZE, p=np.exp(first))
    answers = np.array([rng.choice(WORDS, p=np.exp(second[word])) for word in words])
    start, room = np.full(SIZE, START), np.full(SIZE, ROOM)
    used = {"N": 4 * SIZE, "R": SIZE, "U": 2 * SIZE}
    a = trim(STREAM, a, used)
    a["tokens"][:] = torch.tensor(np.stack([start, words, room, answers], axis=1).flatten())
    a["loss_mask"][:] = torch.tensor([False, True, False, True] * SIZE)
    a["policy_version"][:] = torch.tensor([-1, version, -1, version] * SIZE)
    a["logprob"][1::4], a["logprob"][3::4] = torch.tensor(first[words]), torch.tensor(second[words, answers])
    a["row_start"][:], a["row_length"][:], a["row_owner"][:] = torch.arange(0, 4 * SIZE, 4), 4, torch.arange(SIZE)
    a["prompt_length"][:], a["terminated"][:] = 1, True
    a["turn_row"][:] = torch.arange(SIZE).repeat_interleave(2)
    a["turn_start"][:], a["turn_end"][:] = torch.tensor([1, 3] * SIZE), torch.tensor([2, 4] * SIZE)
    a["turn_key"][:] = torch.tensor([START, ROOM] * SIZE)
    a["rewards/luck"][::2], a["rewards/luck"][1::2] = torch.tensor(rng.choice([-luck, luck], size=SIZE)).float(), 0.0
    a["rewards/right"][::2], a["rewards/right"][1::2] = 0.0, torch.tensor(answers == RIGHT).float()
    return Segment(0, STREAM, Header(used=used), a)


def probability_of_the_right_word(name: str, seed: int, *, luck: float = LUCK) -> float:
    """After the budget of updates."""
    config = TokenLearnerConfig(lr=6e-3, critic_lr=1e-2, warmup_updates=0, precision="float32")
    learner = TokenLearner(config, build_model(MODEL, WORDS, seed=seed), algorithms={"rollouts": ALGORITHMS[name]()})
    rng = np.random.default_rng(seed)
    for version in range(UPDATES):
        first, second = logprobs(learner)
        groups = [conversations(rng, first, second, version, luck) for _ in range(GROUPS)]
        learner.update(learner.prepare({"rollouts": groups}, progress=0.0))
    first, second = logprobs(learner)
    return float(np.exp(first) @ np.exp(second[:, RIGHT]))


@pytest.mark.parametrize(("name", "solves"), [("grpo", False), ("gigpo", True), ("turn_ppo", True)])
def test_only_credit_by_turn_finds_the_right_word_behind_luck(name: str, solves: bool) -> None:
    """At least 0.8 on 2 of 3 seeds with credit by turn, on none of 2 without; it begins at 0.125. On seeds 0 to 4 GiGPO had
    0.99 or more, PPO on turns 0.58 to 0.96, and GRPO 0.16 to 0.66."""
    torch.set_num_threads(1)
    found: list[float] = []
    for seed in range(3 if solves else 2):
        found.append(probability_of_the_right_word(name, seed))
        if sum(p >= 0.8 for p in found) == 2:
            break
    assert sum(p >= 0.8 for p in found) == (2 if solves else 0), found


@pytest.mark.parametrize("name", ["loop", "grpo_roc", "spa"])
def test_without_luck_the_others_find_it_too(name: str) -> None:
    """At least 0.8 on 2 of 3 seeds; on seeds 0 to 2 each algorithm had 0.99 or more."""
    torch.set_num_threads(1)
    found: list[float] = []
    for seed in range(3):
        found.append(probability_of_the_right_word(name, seed, luck=0.0))
        if sum(p >= 0.8 for p in found) == 2:
            break
    assert sum(p >= 0.8 for p in found) == 2, found
