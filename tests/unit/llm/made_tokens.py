"""Made-up groups, demonstrations and pairs for tests of the token learner and its algorithms."""

from __future__ import annotations

import torch

from runnel.core.records import Header, Segment, trim
from runnel.llm.sampling.groups import demo_stream, pair_stream, rollout_stream, write_row

VOCAB = 20


def words(rng, low=1, high=6):
    return torch.tensor(rng.integers(3, VOCAB, size=int(rng.integers(low, high))))


def group(rng, rewards, version=0, index=0, greedy_first=False, demo_first=False, channels=("exact", "style"), **more):
    """The first channel rewards the answers with `rewards`; `more` are settings of the stream. With `demo_first` no policy made
    the first answer."""
    spec = rollout_stream(group_size=len(rewards), max_prompt=6, max_tokens=6, rewards=channels, **more)
    arrays, start = spec.allocate(), 0
    prompt = words(rng)
    for row, reward in enumerate(rewards):
        answer = words(rng)
        end = start + write_row(arrays, row, start, prompt, answer)
        arrays["logprob"][end - len(answer) : end] = torch.tensor(rng.normal(-3.0, 0.3, size=len(answer))).float()
        arrays["policy_version"][start:end] = version
        arrays[f"rewards/{channels[0]}"][row] = reward
        if greedy_first and row == 0:
            arrays["loss_mask"][start:end] = False
        if demo_first and row == 0:
            arrays["policy_version"][start:end], arrays["logprob"][start:end] = -1, 0.0
        start = end
    used = {"N": start, "R": len(rewards), "U": len(rewards)}
    return Segment(index, spec, Header(used=used), trim(spec, arrays, used))


def demos(rng, rows):
    spec = demo_stream(rows=rows, max_length=12)
    return _filled(spec, [(words(rng), words(rng)) for _ in range(rows)])


def pairs(rng, num):
    spec = pair_stream(num_pairs=num, max_length=12)
    prompts = [words(rng) for _ in range(num)]
    return _filled(spec, [(prompt, words(rng)) for prompt in prompts for _ in range(2)])


def _filled(spec, rows):
    arrays, start = spec.allocate(), 0
    for row, (prompt, answer) in enumerate(rows):
        start += write_row(arrays, row, start, prompt, answer)
    return Segment(0, spec, Header(used={"N": start}), trim(spec, arrays, {"N": start}))


def talk(rng, rewards, rows_of="trajectory", turn_rewards=(), versions=(0, 0, 0, 0)):
    """A group of conversations of one to four turns. Each is one row, or (`rows_of="turn"`) a row for each turn that begins
    with all that was said before, of which only the turn's own answer is trained: the same thing for any loss on tokens. All
    turns from the third on have one key. Turns took 1, 2, 3 and 4 seconds."""
    more = {"max_turns": 4, "max_rows": 4, "turn_rewards": turn_rewards}
    spec = rollout_stream(group_size=len(rewards), max_prompt=160, max_tokens=40, rewards=("exact", *turn_rewards), **more)
    arrays, at, row, turn = spec.allocate(), 0, 0, 0
    for owner, reward in enumerate(rewards):
        said, start = [], at
        for i in range(int(rng.integers(1, 5))):
            seen, answer = words(rng), words(rng)
            logprob = torch.tensor(rng.normal(-3.0, 0.3, size=len(answer))).float()
            before = said if rows_of == "turn" or i == 0 else []
            if before or i == 0:
                start = at
                arrays["row_owner"][row], arrays["row_start"][row] = owner, start
                history = torch.cat([*before, seen])
                arrays["prompt_length"][row], arrays["row_length"][row] = len(history), 0
                row += 1
            else:
                history = seen
            middle, end = at + len(history), at + len(history) + len(answer)
            arrays["tokens"][at:middle], arrays["tokens"][middle:end] = history, answer
            arrays["policy_version"][at:middle], arrays["policy_version"][middle:end] = -1, versions[i]
            arrays["loss_mask"][middle:end], arrays["logprob"][middle:end] = True, logprob
            arrays["turn_row"][turn], arrays["turn_start"][turn], arrays["turn_end"][turn] = (
                row - 1,
                middle - start,
                end - start,
            )
            arrays["turn_key"][turn], arrays["duration_s"][turn] = min(i, 2) - 1, i + 1.0
            for channel in turn_rewards:
                arrays[f"rewards/{channel}"][turn] = float(rng.integers(0, 3))
            arrays["row_length"][row - 1] += end - at
            turn, at, said = turn + 1, end, [*said, seen, answer]
        arrays["rewards/exact"][owner] = reward
    used = {"N": at, "R": row, "U": turn}
    return Segment(0, spec, Header(used=used), trim(spec, arrays, used))
