"""How much ranks of a trainer gain when they get about equally many tokens instead of neighbouring groups.

    python -m benchmarks.llm.equal_tokens --pairs 7

Ranks take each step together, so the slowest decides. Here the ranks' parts of one batch are trained one after another in one
process, and a step's time is the processor time of the slowest part. Lengths are spread geometrically up to a limit. Sides
alternate, pair by pair, on the same batch; the ratio is the time with neighbours over the time as dealt, with its 95 % interval
(Student's t over pairs).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch

from runnel.core.records import Header, Segment, trim
from runnel.core.sharding.batch_split import share_of
from runnel.eval.statistics import mean_interval
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.model.causal_lm import ModelConfig, build_model
from runnel.llm.sampling.groups import rollout_stream, write_row

VOCAB, LIMIT, MEAN, GROUPS, SIZE = 256, 512, 128, 16, 4
MODEL = ModelConfig(layers=4, width=128, heads=4, kv_heads=2, inner=256, max_positions=LIMIT + 8)


def group(rng: np.random.Generator) -> Segment:
    """Completions of one prompt, with random tokens and rewards."""
    spec = rollout_stream(group_size=SIZE, max_prompt=8, max_tokens=LIMIT)
    arrays, start = spec.allocate(), 0
    for row in range(SIZE):
        length = min(int(rng.geometric(1 / MEAN)), LIMIT)
        prompt, answer = (torch.tensor(rng.integers(3, VOCAB, size=n)) for n in (8, length))
        end = start + write_row(arrays, row, start, prompt, answer)
        arrays["logprob"][end - length : end] = -math.log(VOCAB)
        arrays["rewards/reward"][row] = float(rng.random())
        start = end
    used = {"N": start}
    return Segment(0, spec, Header(used=used), trim(spec, arrays, used))


def slowest(learner: TokenLearner, parts: list[list[Segment]]) -> float:
    """Processor seconds of the part that takes longest."""
    found = []
    for part in parts:
        begin = time.process_time()
        learner.update(learner.prepare({"rollouts": part}, progress=0.0))
        found.append(time.process_time() - begin)
    return max(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--out", type=Path, default=None, help="write the pairs as JSON")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    algorithms = {"rollouts": GRPO(GRPOConfig(), channels={"reward": 1.0})}
    config = TokenLearnerConfig(lr=0.0, max_mismatch=1e9, micro_batch_tokens=16384)
    learner = TokenLearner(config, build_model(MODEL, VOCAB, seed=0), algorithms=algorithms)
    for _ in range(3):  # compiles and warms up, memory for the largest part included
        slowest(learner, [[group(np.random.default_rng(i)) for i in range(GROUPS)]])
    told = {}
    for ranks in asked.ranks:
        pairs = []
        for pair in range(asked.pairs):
            batch = [group(np.random.default_rng([pair, i])) for i in range(GROUPS)]
            sides = {
                "neighbours": [batch[r * GROUPS // ranks : (r + 1) * GROUPS // ranks] for r in range(ranks)],
                "dealt": [share_of(batch, r, ranks) for r in range(ranks)],
            }
            order = list(sides) if pair % 2 == 0 else list(reversed(sides))
            pairs.append({side: slowest(learner, sides[side]) for side in order})
        middle, half = mean_interval(np.log([[p["neighbours"] / p["dealt"]] for p in pairs]))
        ratio, low, high = (math.exp(float(x[0])) for x in (middle, middle - half, middle + half))
        print(f"{ranks} ranks: neighbours / dealt {ratio:.3f} ({low:.3f} to {high:.3f}), {len(pairs)} batches", flush=True)
        told[str(ranks)] = {"pairs": pairs, "ratio": ratio, "low": low, "high": high}
    if asked.out is not None:
        asked.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
