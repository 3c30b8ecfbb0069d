"""The prompt sampler: what an actor runs to make groups of completions.

It consumes tasks and replies, and produces one segment for each group. It waits for a free segment (which the admission rule
allows), for the parameter version that a segment requires, for the engine, for rewards, and for the reference model if any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import torch

from runnel.core.contracts.inference import InferenceClient
from runnel.core.contracts.samples import SampleWriter
from runnel.core.contracts.tasks import Draw, TaskSource
from runnel.core.errors import DataError
from runnel.core.records import Slot
from runnel.core.rng import make_rng, make_seed
from runnel.core.state import State
from runnel.core.worker import progressed
from runnel.llm.engines.requests import SamplingConfig, reply_rows, request_rows
from runnel.llm.learning.reference import REFERENCE, ReferencePlan, reference_rows
from runnel.llm.rewards.judging import RewardJob, RewardPool, Rewards, Verdict, shown_prompt
from runnel.llm.sampling.groups import CompletionGroup, fill, group_data, group_from, tell_replaced
from runnel.llm.tasks import Example, ExampleSource, TextTask
from runnel.llm.tokenize import Tokenizer, messages_of

POLICY, ROLLOUTS = "policy", "rollouts"
"""The inference stream that completes prompts, and the sample stream that groups are written to."""
SAMPLE_EVERY = 32
"""One of so many groups is shown as a sample of the run."""
MAX_FAILURES = 32
"""So many failed groups in a row end the run: the task itself is wrong."""


class PromptSampler:
    """A core `Sampler` that completes prompts in groups of `group_size`.

    If a segment requires a version, that version makes all of its tokens, and such segments are made in the order of their
    sequence. Other segments use the newest parameters, which may change within a completion. With `blocking_rewards`, a step
    waits for the rewards that it has requested (deterministic). Without it, generation continues while rewards are computed,
    and a reward that hangs delays only its own group; a step with nothing else to do waits up to `reward_wait_s` for a reward
    (in one process, where no worker is woken by another). `max_refills` is dynamic sampling (DAPO, section 3.2): a group whose
    rewards are all equal has no gradient, so it is cancelled as `no_signal` and another prompt replaces it, at most so many
    times in a row. With `greedy_first`, the first row of a group is greedy and its tokens are not trained: a baseline (ReMax).
    With `demo_first` it is the answer that the example has, judged as the others are, of the policy version -1 (RL-PLUS).
    With `too_old`, a group of which some completions are done, and so old that it can only be dropped
    (`too_old(their oldest version, the learner's version)`), is cancelled as `aborted`: the engine stops its other completions.
    With a plan for the `reference`, each finished completion is sent to the reference's workers; for a group that requires a
    version, the reference that belongs to that version computes the log-probabilities.

    The share `reset_share` of the groups is reset into a demonstration (DR-PO, Chang et al. 2024, arXiv:2404.08495): their
    completions begin behind the first h tokens of the example's answer, h drawn anew for each group, alike from 1 to all but
    the last one. Rewards judge the whole answer, given part and completion; only the completion is trained, and it is cut where
    the whole answer has `max_tokens`.

    A `source` that uses history is asked for the task of a segment when the history of the segment's version is there. All
    actors of such a run have one seed, and draw by the number of the segment: who makes it does not change what is in it.
    """

    def __init__(
        self,
        task: TextTask,
        tokenizer: Tokenizer,
        *,
        group_size: int,
        max_tokens: int,
        seed: int,
        sampling: SamplingConfig | None = None,
        source: TaskSource | None = None,
        blocking_rewards: bool = True,
        reward_timeout_s: float = 30.0,
        reward_wait_s: float = 0.0,
        max_refills: int = 0,
        greedy_first: bool = False,
        demo_first: bool = False,
        reset_share: float = 0.0,
        reference: ReferencePlan | None = None,
        too_old: Callable[[int, int], bool] | None = None,
    ) -> None:
        self.task, self.tokenizer, self.group_size = task, tokenizer, group_size
        self._max_tokens, self._seed, self._sampling = max_tokens, seed, sampling or SamplingConfig()
        self._greedy = SamplingConfig(0.0, stop=self._sampling.stop, stop_tokens=self._sampling.stop_tokens)
        self._source: TaskSource = source or ExampleSource(task.train, seed=seed, name="prompts")
        self._pool = RewardPool(task.components, timeout_s=reward_timeout_s, ordered=blocking_rewards)
        self._reward_wait_s = reward_wait_s
        self._pool.start()
        self._blocking = blocking_rewards
        self._levels = {channel: part.level for part in task.components for channel in part.weights}
        self._max_refills, self._refills = max_refills, 0
        self._greedy_first, self._reference, self._too_old = greedy_first, reference, too_old
        self._reset_share, self._demo_first = reset_share, demo_first
        self._groups: list[CompletionGroup] = []
        self._reserved: Slot | None = None
        """A segment that waits for the history of its version."""
        self._given_up: dict[int, list[tuple[int, float]]] = {}
        """Of a source that uses history: what was begun before for a segment, and given up, as task and mean reward (NaN: it
        failed). By its number; together (-1) where a number is not given again."""
        self._num_groups = 0
        self._failures = 0
        self._events: list[State] = []
        self._waits_for = "its first step"

    # ------------------------------------------------------------------------------------------------------------ step
    @property
    def num_rows(self) -> int:
        """Trajectories of a group."""
        return self.group_size

    def step(self, clients: Mapping[str, InferenceClient], writers: Mapping[str, SampleWriter]) -> int:
        """Open groups while segments are free, submit those that may start, decode once, and commit those that are judged."""
        client, writer = clients[POLICY], writers[ROLLOUTS]
        reference = clients[REFERENCE] if self._reference is not None else None
        self._waits_for = ""
        self._collect(client, reference)
        self._reissue(client)
        self._abort(client, writer, reference)
        work = self._open(client, writer) + self._submit(client)
        if client.pending():
            work += client.poll()
            self._waits_for = self._waits_for or f"{client.pending()} completions of inference {POLICY!r}"
        work += self._collect(client, reference)
        for verdict in self._verdicts():
            work += self._finish(verdict, writer, reference)
        if reference is not None:
            work += self._poll_reference(reference, writer)
        if work == 0 and self._pool.pending():
            self._waits_for = f"{self._pool.pending()} rewards"
            progressed()  # waiting is no hang: each reward has its own deadline
            if self._reward_wait_s:
                self._pool.wait(self._reward_wait_s)
                return 1
        return work

    def _open(self, client: InferenceClient, writer: SampleWriter) -> int:
        """Reserve segments and give each a task."""
        opened = 0
        while (slot := self._reserved or writer.reserve()) is not None:
            self._reserved = None
            draw = self._draw(client, slot)
            if draw is None:
                self._reserved, self._waits_for = (
                    slot,
                    f"the history of tasks of version {max(slot.header.required_version, 0)}",
                )
                return opened
            example: Example = self._source.next(draw).data["example"]
            group = self._new_group(slot, example, draw.attempt)
            if why := self._no_room(group):
                self._cancel(group, writer, why)
                break
            self._groups.append(group)
            opened += 1
        if not self._groups:
            self._waits_for = f"a free segment of stream {ROLLOUTS!r}"
        return opened

    def _new_group(self, slot: Slot, example: Example, attempt: int) -> CompletionGroup:
        """A group that has not begun."""
        group = CompletionGroup(slot, example, self.tokenizer.render(messages_of(example.prompt)), attempt=attempt)
        if self._reset_share and example.answer is not None:
            group.prefix = self._drawn_prefix(group, self.tokenizer.answer(example.answer))
        return group

    def _drawn_prefix(self, group: CompletionGroup, answer: list[int]) -> list[int]:
        """The part of a demonstrated answer that a group gets: nothing, where it is not reset."""
        rng, longest = make_rng(self._seed, "reset", *self._names(group, 0)), min(len(answer), self._max_tokens)
        if longest < 2 or rng.random() >= self._reset_share:
            return []
        return answer[: int(rng.integers(1, longest))]

    def _no_room(self, group: CompletionGroup) -> str:
        """Why a group cannot be played, if so."""
        room = group.slot.spec.sizes["N"] // self.group_size - self._max_tokens
        num = len(group.prompt)
        if self._demo_first and group.example.answer is None:
            return "no_answer"
        if self._demo_first and (size := len(self.tokenizer.answer(group.example.answer or ""))) > self._max_tokens:
            return f"answer_too_long: {size} tokens, room for {self._max_tokens}"
        return f"prompt_too_long: {num} tokens, room for {room}" if num > room else ""

    def _draw(self, client: InferenceClient, slot: Slot) -> Draw | None:
        """What the task of a segment is chosen by; None while the history of its version has not arrived."""
        header = slot.header
        if not self._source.uses_history:
            return Draw(header.sequence)
        history = client.constants(header.required_version)
        return None if history is None else Draw(header.sequence, len(self._given_up.get(_number(slot), ())), history=history)

    def _submit(self, client: InferenceClient) -> int:
        """Submit waiting groups whose version is loaded, oldest first."""
        waiting = [g for g in self._groups if g.waits]
        running = {g.required for g in self._groups if g.runs}
        submitted = 0
        if (waiting or running) and all(g.required < 0 for g in self._groups):
            client.sync()
        synced: set[int] = set()
        for group in waiting:
            if running - {group.required}:
                self._waits_for = f"groups of version {min(running)} to end, before version {group.required} is loaded"
                break
            if not self._ready(client, group.required, synced):
                self._waits_for = f"parameters of version {group.required if group.required >= 0 else 0}"
                break
            self._begin(client, group)
            running.add(group.required)
            submitted += self.group_size
        return submitted

    def _ready(self, client: InferenceClient, version: int, synced: set[int]) -> bool:
        if version < 0:
            return client.version >= 0
        if version not in synced and client.sync(version):
            synced.add(version)
        return version in synced

    def _begin(self, client: InferenceClient, group: CompletionGroup) -> None:
        """Start a group, whose version is loaded."""
        self._request(client, group, range(self._first_sampled, self.group_size))

    @property
    def _first_sampled(self) -> int:
        """The first row that the engine makes."""
        return int(self._demo_first)

    def _demonstrate(self, group: CompletionGroup, reference: InferenceClient | None) -> None:
        """The demonstrated answer, or what a reset group was not given of it, as the reply to row 0."""
        answer = self.tokenizer.answer(group.example.answer or "")[len(group.prefix) :]
        nobody = [-1] * len(answer)
        group.replies[0] = reply_rows(answer, [0.0] * len(answer), nobody, terminated=True)
        if reference is not None:
            self._ask_reference(group, 0, reference)

    def _names(self, group: CompletionGroup, row: int) -> tuple[int, ...]:
        """What tells the draws of a row from those of all others. With a source that uses history it does not matter who makes
        the segment."""
        header = group.slot.header
        return (header.sequence, group.attempt, row) if self._source.uses_history else (header.sample_id + row,)

    def _request(self, client: InferenceClient, group: CompletionGroup, rows: Sequence[int]) -> None:
        for row in rows:
            seed = make_seed(self._seed, "sample", *self._names(group, row))
            sampling = self._greedy if self._greedy_first and row == 0 else self._sampling
            most = self._max_tokens - len(group.prefix)
            request = request_rows(group.context, seed=seed, max_tokens=most, sampling=sampling)
            group.tickets[row] = client.submit(request, version=group.required, affinity=group.slot.header.sequence)

    def _collect(self, client: InferenceClient, reference: InferenceClient | None) -> int:
        """Take replies. Each one is sent to the reference, if there is one; a complete group is sent to the rewards."""
        taken = 0
        for group in self._groups:
            if self._demo_first and group.runs and 0 not in group.replies:
                self._demonstrate(group, reference)
            for row, ticket in list(group.tickets.items()):
                reply = client.ready(ticket)
                if reply is not None:
                    del group.tickets[row]
                    group.replies[row] = reply.rows
                    taken += 1
                    if reference is not None:
                        self._ask_reference(group, row, reference)
                    if not group.tickets:
                        self._judge(group)
        return taken

    def _reissue(self, client: InferenceClient) -> None:
        """Request completions again that the client has lost (in a restart). A request has its seed, so the reply is equal."""
        lost = [g for g in self._groups if g.tickets]
        if not lost or client.pending():
            return
        self._events.append({"kind": "event", "text": f"asked again for {sum(len(g.tickets) for g in lost)} completions"})
        for group in lost:
            rows, group.tickets = sorted(group.tickets), {}
            self._request(client, group, rows)

    def _abort(self, client: InferenceClient, writer: SampleWriter, reference: InferenceClient | None) -> None:
        """Give up groups that are too old already, while completions of theirs still run."""
        if self._too_old is None:
            return
        for group in [g for g in self._groups if g.tickets and g.replies]:
            made = group.versions()
            if len(made) and self._too_old(int(made.min()), writer.version()):
                client.abort(list(group.tickets.values()))
                self._drop(group, reference)
                writer.cancel(group.slot, "aborted")

    # ------------------------------------------------------------------------------------------------------- reference
    def _ask_reference(self, group: CompletionGroup, row: int, reference: InferenceClient) -> None:
        """Request the reference's log-probabilities of a finished completion, unless its tokens are not trained."""
        if self._reference is None or (self._greedy_first and row == 0):
            return
        rows = reference_rows(torch.tensor(group.context), group.replies[row]["tokens"])
        version, affinity = self._reference.at(group.required), group.slot.header.sequence
        group.asked[row] = reference.submit(rows, version=version, affinity=affinity)

    def _poll_reference(self, reference: InferenceClient, writer: SampleWriter) -> int:
        """Take replies of the reference, and commit groups that are judged and have all of them."""
        work = reference.poll() if reference.pending() else 0
        for group in list(self._groups):
            for row, ticket in list(group.asked.items()):
                if (reply := reference.ready(ticket)) is not None:
                    del group.asked[row]
                    group.reference[row] = reply.rows["logprob"]
                    work += 1
            if group.rewards is not None and not group.asked:
                self._commit(group, writer)
                work += 1
        if missing := sum(len(g.asked) for g in self._groups):
            self._waits_for = self._waits_for or f"{missing} answers of inference {REFERENCE!r}"
        return work

    # --------------------------------------------------------------------------------------------------------- rewards
    def _judge(self, group: CompletionGroup) -> None:
        ids = [group.answer(i) for i in range(self.group_size)]
        completions = [self.tokenizer.decode(tokens) for tokens in ids]
        columns = {k: [v] * self.group_size for k, v in group.example.columns.items()}
        prompts, talks = [group.example.text] * self.group_size, [messages_of(group.example.prompt)] * self.group_size
        self._pool.submit(RewardJob(group.slot.header.sample_id, prompts, completions, columns, ids, talks))

    def _verdicts(self) -> list[Verdict]:
        """Verdicts that are there; with `blocking_rewards`, all."""
        return self._pool.collect(block=self._blocking)

    def _finish(self, verdict: Verdict, writer: SampleWriter, reference: InferenceClient | None) -> int:
        group = next(g for g in self._groups if g.slot.header.sample_id == verdict.key)
        for reason in verdict.retried:
            self._events.append({"kind": "call_retried", "reason": reason, "prompt": shown_prompt(group.example.text)})
        if verdict.rewards is None:
            self._drop(group, reference)
            self._cancel(group, writer, f"reward_failed: {verdict.failure}", verdict.lines)
            return 1
        return self._settle(group, verdict.rewards, writer, reference)

    def _settle(self, group: CompletionGroup, rewards: Rewards, writer: SampleWriter, reference: InferenceClient | None) -> int:
        """Commit a group with its rewards, or replace it where they say nothing."""
        self._failures = 0
        totals = [self.task.total({c: values[i] for c, values in rewards.items()}) for i in range(self.num_rows)]
        self._report(group, totals)
        if self._says_nothing(totals) and self._num_refills(group) < self._max_refills:
            self._refills += 1
            self._drop(group, reference)
            self._give_up(group, totals[0] if max(totals) == min(totals) else fmean(totals))
            writer.cancel(group.slot, "no_signal")
            return 1
        self._refills, group.rewards = 0, rewards
        if not group.asked:
            self._commit(group, writer)
        return 1

    def _says_nothing(self, totals: Sequence[float]) -> bool:
        """Whether the rewards of a group have no gradient."""
        return max(totals) == min(totals)

    def _num_refills(self, group: CompletionGroup) -> int:
        """Groups in a row that were replaced: of this segment, or where no history is used, of this actor."""
        return len(self._given_up.get(_number(group.slot), ())) if self._source.uses_history else self._refills

    def _give_up(self, group: CompletionGroup, reward: float = math.nan) -> None:
        """Note what the trainer would not hear of otherwise."""
        if self._source.uses_history:
            self._given_up.setdefault(_number(group.slot), []).append((group.example.id, reward))

    def _drop(self, group: CompletionGroup, reference: InferenceClient | None) -> None:
        """Remove a group, and cancel its requests to the reference."""
        self._groups.remove(group)
        if reference is not None and group.asked:
            reference.abort(list(group.asked.values()))

    def _commit(self, group: CompletionGroup, writer: SampleWriter) -> None:
        self._groups.remove(group)
        num_steps = self._fill(group)
        if self._source.uses_history:
            tell_replaced(group, self._given_up.pop(_number(group.slot), ()))
        writer.commit(group.slot, num_steps=num_steps)

    def _fill(self, group: CompletionGroup) -> int:
        """Write a group into its segment; returns the number of tokens that the policy made."""
        fill(group, self._levels, self.tokenizer)
        if self._greedy_first:
            group.slot.arrays["loss_mask"][: group.slot.arrays["row_length"][0]] = False
        return sum(len(reply["tokens"]) for row, reply in group.replies.items() if row >= self._first_sampled)

    def _cancel(self, group: CompletionGroup, writer: SampleWriter, reason: str, lines: str = "") -> None:
        """Cancel a group, and raise after too many in a row. `lines` are the lines of the user's code that failed."""
        self._give_up(group)
        writer.cancel(group.slot, reason)
        at = {"prompt": self._shown(group.example), "lines": lines}
        self._events.append({"kind": "failure", "reason": reason, "rows": self.num_rows, **at})
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            what = f"{self._failures} groups in a row failed, the last one with {reason!r} {at['prompt']}"
            raise DataError(f"{what}; {self._fix}{lines}")

    def _shown(self, example: Example) -> str:
        """An example in a message."""
        return shown_prompt(example.text)

    @property
    def _fix(self) -> str:
        """What to do where every group fails."""
        return f"fix the task {self.task.name!r}"

    def _report(self, group: CompletionGroup, totals: Sequence[float]) -> None:
        version, first = int(group.versions().max()), self._first_sampled
        for row, total in list(enumerate(totals))[first:]:
            length = len(group.replies[row]["tokens"])
            self._events.append({"kind": "episode", "return": total, "length": length, "version": version})
        if self._num_groups % SAMPLE_EVERY == 0:
            text = self.tokenizer.decode(group.answer(first))
            sample = {"prompt": group.example.text, "completion": text, "reward": totals[first], "version": version}
            self._events.append({"kind": "sample", **sample})
        self._num_groups += 1

    # ----------------------------------------------------------------------------------------------------------- state
    def waits_for(self) -> str:
        return self._waits_for

    def events(self) -> list[State]:
        out, self._events = self._events, []
        return out

    def snapshot(self) -> State:
        """The state, with unfinished groups. Their segments are in the stream's snapshot, their tickets in the client's."""
        return {
            "seed": self._seed,
            "source": self._source.snapshot(),
            "num_groups": self._num_groups,
            "failures": self._failures,
            "refills": self._refills,
            "events": [dict(e) for e in self._events],
            "groups": [self._group_data(g) for g in self._groups],
            "reserved": None if self._reserved is None else self._reserved.index,
            "given_up": [[number, [list(one) for one in some]] for number, some in self._given_up.items()],
        }

    def restore(self, state: State, writers: Mapping[str, SampleWriter]) -> None:
        writer = writers[ROLLOUTS]
        self._seed = state["seed"]
        self._source.restore(state["source"])
        self._num_groups, self._failures, self._refills = state["num_groups"], state["failures"], state["refills"]
        self._events = [dict(e) for e in state["events"]]
        index = state.get("reserved")  # older checkpoints have neither this nor the next
        self._reserved = None if index is None else writer.reclaim(index)
        self._given_up = {int(number): [(int(i), r) for i, r in some] for number, some in state.get("given_up", ())}
        self._groups = []
        for data in state["groups"]:
            self._groups.append(group := self._group_from(data, writer))
            if group.unjudged:
                self._judge(group)

    def _group_data(self, group: CompletionGroup) -> State:
        return group_data(group)

    def _group_from(self, data: State, writer: SampleWriter) -> CompletionGroup:
        return group_from(data, writer)

    def close(self) -> None:
        self._pool.close()


def _number(slot: Slot) -> int:
    """The number of a segment that is made again under it when it is cancelled; -1 for others."""
    return slot.header.sequence if slot.header.required_version >= 0 else -1
