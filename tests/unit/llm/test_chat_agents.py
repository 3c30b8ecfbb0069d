"""Conversations of several agents: what each role is compared with, and partners that speak and are never trained."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from fakes_llm import FakeStream
from made_tokens import VOCAB, talk
from test_group_recording import Letters

from runnel.core.contracts.chat import Turn
from runnel.core.contracts.evaluation import POLICY
from runnel.core.contracts.inference import Reply
from runnel.core.errors import ConfigError, DataError
from runnel.core.sharding.batch_split import check_shares, share_of, shares_evenly
from runnel.flow.inference.inline import InlineClient
from runnel.flow.params import ChannelSubscriber, FixedChannel, LocalChannel, NoChannel
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.chat.config import TalkConfig
from runnel.llm.chat.evaluation import ChatEvaluation
from runnel.llm.chat.partners import Partner, speakers_of
from runnel.llm.chat.player import ChatPlayer
from runnel.llm.chat.sampler import ChatSampler
from runnel.llm.chat.task import make_chat_task
from runnel.llm.chat.tools import tool
from runnel.llm.engines.native import NativeEngine
from runnel.llm.engines.requests import reply_rows
from runnel.llm.learning.batches import join_rows, token_owner
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.learning.recording import GroupRecorder
from runnel.llm.learning.task_history import group_advantages
from runnel.llm.model.causal_lm import ModelConfig, build_model, model_params
from runnel.llm.sampling.groups import rollout_stream
from runnel.llm.tokenize import CharTokenizer
from runnel.llm.worlds import make_game
from runnel.ops.credit import group_advantage
from runnel.testing.chat import check_chat

TOKENIZER = CharTokenizer()
SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=512, tie_embeddings=False)
N, MAX_TOKENS, CONTEXT, TURNS = 3, 4, 300, 4


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


class Duel:
    """Both say something in three rounds; who wrote more letters wins so many from the other."""

    agents = ("red", "blue")
    lane = "inline"
    rounds = 3
    worth = staticmethod(len)

    def __init__(self):
        self.now = {"round": 0}

    def reset(self, task, *, seed):
        self.now = {"round": 0}
        return {"red": Turn(f"red {seed % 10}", key="start"), "blue": Turn(f"blue {seed % 10}", key="start")}

    def step(self, messages):
        self.now["round"] += 1
        said = {a: m["content"] for a, m in messages.items()}
        lead = float(self.worth(said["red"]) - self.worth(said["blue"]))
        over = self.now["round"] == self.rounds
        return {
            "red": Turn(f"they said {said['blue']}", lead, terminated=over),
            "blue": Turn(f"they said {said['red']}", -lead, terminated=over),
        }

    def get_state(self):
        return dict(self.now)

    def set_state(self, state):
        self.now = dict(state)


class Shifted(CharTokenizer):
    """Another vocabulary: all bytes have other numbers."""

    def encode(self, text, *, control=False):
        return [6 + (t - 6 + 100) % 256 for t in super().encode(text)]

    def decode(self, tokens):
        return super().decode([t if t < 6 else 6 + (t - 6 - 100) % 256 for t in tokens])

    def spell(self, tokens):
        return super().spell([t if t < 6 else 6 + (t - 6 - 100) % 256 for t in tokens])


def model(seed=0):
    return build_model(SIZES, TOKENIZER.vocab_size, seed=seed)


def engine(seed=0):
    return NativeEngine(model(seed), num_slots=8, max_length=CONTEXT, eos_id=2)


def policy_client(versions=(0,)):
    channel = LocalChannel("policy", shared=False, depth=8)
    for version in versions:
        channel.publish(version, {name: (1 + 4 * version) * x for name, x in model_params(model(version)).items()})
    return InlineClient(engine(), ChannelSubscriber(channel))


def partner_client(seed=7):
    return InlineClient(engine(seed), ChannelSubscriber(NoChannel()))


def clients_of(partners=(), versions=(0,)):
    return {POLICY: policy_client(versions), **{p.stream: partner_client() for p in dict(partners).values()}}


def sampler_of(game=Duel, *, partners=None, max_turns=TURNS, context=CONTEXT, **more):
    task = make_chat_task(game, talk=TalkConfig(**more.pop("talk", {})))
    limits = {"max_turns": max_turns, "max_context": context, "group_size": N, "max_tokens": MAX_TOKENS}
    return ChatSampler(task, TOKENIZER, blocking_calls=True, seed=1, partners=partners, **limits, **more)


def stream_of(trained=2, **kwargs):
    spec = rollout_stream(
        group_size=N,
        max_prompt=CONTEXT,
        max_tokens=0,
        turn_rewards=("reward",),
        max_turns=TURNS,
        num_agents=trained,
        capacity=4,
    )
    return FakeStream(spec, **{"limit": 2, **kwargs})


def run(sampler, clients, stream, steps=200):
    for _ in range(steps):
        sampler.step(clients, {"rollouts": stream})


def played(game=Duel, *, trained=2, partners=None, limit=2, **more):
    sampler, stream = sampler_of(game, partners=partners, **more), stream_of(trained, limit=limit)
    run(sampler, clients_of(partners or {}), stream)
    return stream.take(limit), sampler


BLUE = {"blue": Partner("partner0", TOKENIZER, CONTEXT)}


# ------------------------------------------------------------------------------------------------------------- roles
def test_a_role_is_compared_with_itself_in_the_other_conversations():
    segments, _ = played()
    rows = join_rows(segments)
    assert segments[0].spec.num_rows == segments[0].spec.unit_rows == 2 * N
    assert rows["agent"].tolist() == [0, 1] * (2 * N)
    assert rows["group"].tolist() == [0, 1] * N + [2, 3] * N
    total = rows["rewards/reward"].numpy()
    assert np.array_equal(total[::2], -total[1::2])
    assert np.ptp(total[::2]) > 0
    found = group_advantage(rows["rewards/reward"], rows["group"], scale=True).numpy()
    for segment in range(2):
        for role in range(2):
            mine = slice(segment * 2 * N + role, (segment + 1) * 2 * N, 2)
            expected = (total[mine] - total[mine].mean()) / (total[mine].std(ddof=1) + 1e-6)
            assert found[mine] == pytest.approx(expected, abs=1e-5)
    sizes = [np.abs(found[k * 2 * N : (k + 1) * 2 * N]).mean() for k in range(2)]
    assert [size for s in segments for _, size in group_advantages(s, {"reward": 1.0})] == pytest.approx(sizes)


def test_one_agent_has_the_fields_and_groups_that_it_had():
    before = rollout_stream(group_size=N, max_prompt=8, max_tokens=0, max_turns=3)
    assert "agent" not in before.fields
    segments = [talk(np.random.default_rng(k), [1.0, 0.0]) for k in range(2)]
    assert join_rows(segments)["group"].tolist() == [0, 0, 1, 1]


def test_ranks_never_part_the_roles_of_a_segment():
    segments, _ = played()
    spec = segments[0].spec
    assert not shares_evenly(spec, 1, 2)
    with pytest.raises(ConfigError, match="1 units"):
        check_shares(spec, 1, 2)
    parts = [join_rows(share_of(segments, rank, 2)) for rank in range(2)]
    assert [part["agent"].tolist() for part in parts] == [[0, 1] * N] * 2


def test_a_greedy_baseline_is_greedy_for_all_of_its_agents_and_not_trained():
    (segment,), _ = played(limit=1, greedy_first=True)
    rows = join_rows([segment])
    trained = torch.zeros(2 * N).index_add(0, token_owner(rows), rows["loss_mask"].float())
    assert trained[:2].tolist() == [0.0, 0.0]
    assert bool((trained[2:] > 0).all())


class Tie(Duel):
    """Each is paid the same in all conversations, and one never what the other is."""

    def step(self, messages):
        turns = super().step(messages)
        return {a: Turn(t.messages, 1.0 if a == "red" else -1.0, terminated=t.terminated) for a, t in turns.items()}


def test_a_group_says_nothing_where_each_role_was_always_paid_the_same():
    sampler, stream = sampler_of(Tie, max_refills=1), stream_of(limit=2)
    run(sampler, clients_of(), stream)
    assert stream.cancelled == ["no_signal"]
    assert len(stream.committed) == 1


def test_a_recorded_group_has_one_role():
    segments = [talk(np.random.default_rng(k), [1.0, 0.0, 2.0, 5.0]) for k in range(2)]
    for segment in segments:
        segment.arrays["agent"] = torch.tensor([0, 1, 0, 1])
        segment.spec.fields["agent"] = rollout_stream(group_size=2, max_prompt=1, max_tokens=1, num_agents=2).fields["agent"]
    config = TokenLearnerConfig(max_mismatch=1e9, warmup_updates=0)
    grpo = {"rollouts": GRPO(GRPOConfig(), channels={"exact": 1.0})}
    tiny = build_model(ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=256), VOCAB, seed=0)
    recorder = GroupRecorder(Letters(), every=1, channels={"exact": 1.0}, agents=("left", "right"))
    learner = TokenLearner(config, tiny, algorithms=grpo, recorder=recorder)
    told = []
    for _ in range(4):
        (event,) = learner.update(learner.prepare({"rollouts": segments}, progress=0.0)).events
        told.append((event["agent"], [row["reward"] for row in event["rows"]]))
    assert told == [("right", [0.0, 5.0]), ("left", [1.0, 2.0]), ("right", [0.0, 5.0]), ("left", [1.0, 2.0])]


# ---------------------------------------------------------------------------------------------------------- partners
class Heard(Duel):
    """Keeps all that was said, in the process."""

    said: ClassVar[dict[str, list[str]]] = {}

    def step(self, messages):
        for agent, message in messages.items():
            Heard.said.setdefault(agent, []).append(message["content"])
        return super().step(messages)


@pytest.mark.parametrize("tokenizer", [TOKENIZER, Shifted()])
def test_what_a_partner_says_is_heard_as_text_and_never_in_a_segment(tokenizer):
    Heard.said = {}
    partners = {"blue": Partner("partner0", tokenizer, CONTEXT)}
    segments, _ = played(Heard, trained=1, partners=partners)
    assert "agent" not in segments[0].arrays
    for segment in segments:
        a = segment.arrays
        assert (segment.spec.num_rows, segment.header.used["R"], segment.header.used["U"]) == (N, N, 3 * N)
        assert bool((a["policy_version"][a["loss_mask"]] == 0).all())
        assert (segment.header.version_min, segment.header.version_max) == (0, 0)
        for row in range(N):
            at = slice(int(a["row_start"][row]), int(a["row_start"][row] + a["row_length"][row]))
            text, mask = TOKENIZER.decode(a["tokens"][at].tolist()), a["loss_mask"][at]
            mine = TOKENIZER.decode(a["tokens"][at][mask].tolist())
            assert any(f"they said {theirs}" in text for theirs in Heard.said["blue"])
            assert "they said" not in mine
    trained = sorted(TOKENIZER.decode(t.tolist()) for s in segments for t in turns_of(s))
    assert trained == sorted(Heard.said["red"])


def turns_of(segment):
    """The tokens of each turn."""
    a = segment.arrays
    for row, begin, end in zip(a["turn_row"], a["turn_start"], a["turn_end"], strict=True):
        start = int(a["row_start"][row])
        yield a["tokens"][start + int(begin) : start + int(end)]


def first_words(agent, versions):
    """What an agent says first, in plays of one start with the same draws, by the policy's version."""
    said = []
    for version in versions:
        Heard.said = {}
        sampler = sampler_of(Heard, partners=BLUE)
        stream = stream_of(1, limit=1, required=lambda k, v=version: v)
        run(sampler, clients_of(BLUE, versions), stream, 60)
        assert stream.committed[0].header.version_min == version
        said.append(tuple(Heard.said[agent][:N]))
    return said


def test_a_frozen_partner_stays_as_it_is_while_the_policy_changes():
    assert len(set(first_words("red", (0, 1, 2)))) > 1
    assert len(set(first_words("blue", (0, 1, 2)))) == 1


def test_a_stored_partner_speaks_with_the_parameters_that_it_is_given():
    given = InlineClient(engine(seed=3), ChannelSubscriber(FixedChannel(model_params(model(7)))))
    found = []
    for client in (given, partner_client(seed=7)):
        Heard.said = {}
        sampler, stream = sampler_of(Heard, partners=BLUE), stream_of(1, limit=1)
        run(sampler, {POLICY: policy_client(), "partner0": client}, stream, 60)
        found.append(Heard.said["blue"])
    assert found[0] == found[1]


@pytest.mark.parametrize("steps", [1, 3, 6, 8, 11])
@pytest.mark.parametrize("partners", [{}, BLUE])
@pytest.mark.parametrize("stateless", [False, True])
def test_a_snapshot_in_the_middle_of_a_game_goes_on_bit_for_bit(steps, partners, stateless):
    game = type("Stateless", (Duel,), {"get_state": None, "set_state": None}) if stateless else Duel
    trained = 2 - len(partners)
    sampler, clients, stream = sampler_of(game, partners=partners), clients_of(partners), stream_of(trained, limit=3)
    run(sampler, clients, stream, steps)
    other, twins, copy = sampler_of(game, partners=partners), clients_of(partners), stream_of(trained, limit=3)
    for _ in range(len(stream.reserved) + len(stream.committed)):
        copy.reserve()
    for name, twin in twins.items():
        twin.restore(clients[name].snapshot())
    other.restore(sampler.snapshot(), {"rollouts": copy})
    before = len(stream.committed)
    run(sampler, clients, stream, 80)
    run(other, twins, copy, 80)
    assert len(stream.committed) == 3
    assert len(stream.committed) - before == len(copy.committed) > 0
    for a, b in zip(stream.committed[before:], copy.committed, strict=True):
        assert a.header == b.header
        assert all(torch.equal(a.arrays[k], b.arrays[k]) for k in a.arrays if k != "duration_s")


def test_replies_that_one_engine_has_lost_are_asked_for_again():
    sampler, clients, stream = sampler_of(partners=BLUE), clients_of(BLUE), stream_of(1, limit=1)
    run(sampler, clients, stream, 2)
    clients["partner0"] = partner_client()
    run(sampler, clients, stream, 80)
    assert any("asked again" in e.get("text", "") for e in sampler.events())
    again = stream.take(1)[0]
    expected = played(partners=BLUE, trained=1, limit=1)[0][0]
    assert torch.equal(again.arrays["tokens"], expected.arrays["tokens"])


# ------------------------------------------------------------------------------------------------- odd conversations
class Folds(Duel):
    """Red is over after its first message, and is paid when blue is through."""

    agents = ("red", "blue")

    def step(self, messages):
        self.now["round"] += 1
        if self.now["round"] == 1:
            return {"red": Turn("you are out", terminated=True), "blue": Turn("go on")}
        over = self.now["round"] == 3
        return {"blue": Turn("on", 1.0, terminated=over), **({"red": Turn((), 5.0, terminated=True)} if over else {})}


def test_an_agent_that_is_over_early_keeps_its_turns_and_can_still_be_paid():
    (segment,), _ = played(Folds, limit=1)
    a, rows = segment.arrays, join_rows([segment])
    turns = torch.bincount(a["row_owner"][a["turn_row"]], minlength=2 * N)
    assert turns.tolist() == [1, 3] * N
    assert rows["rewards/reward"].tolist() == [5.0, 2.0] * N
    assert bool(a["terminated"].all())


class Silent(Duel):
    """Blue is never asked."""

    def reset(self, task, *, seed):
        return {"red": super().reset(task, seed=seed)["red"]}

    def step(self, messages):
        self.now["round"] += 1
        over = self.now["round"] == 2
        return {"red": Turn("on", terminated=over), **({"blue": Turn("it is over", 1.0, terminated=True)} if over else {})}


def test_an_agent_that_never_speaks_is_a_failure_in_words():
    sampler, stream = sampler_of(Silent), stream_of(limit=None)
    with pytest.raises(DataError, match="the conversation was over before blue had spoken"):
        run(sampler, clients_of(), stream, 2000)
    sampler, stream = sampler_of(Silent, max_turns=1), stream_of(limit=None)
    with pytest.raises(DataError, match=r"was over \(max_turns, or talk.first\) before blue had spoken"):
        run(sampler, clients_of(), stream, 2000)
    segments, _ = played(Silent, partners=BLUE, trained=1)
    assert [s.header.used["U"] for s in segments] == [2 * N] * 2


def test_a_limit_of_one_agent_takes_nothing_from_what_another_earned_in_that_step():
    (segment,), sampler = played(limit=1, max_turns=2)
    total = join_rows([segment])["rewards/reward"]
    assert torch.equal(total[::2], -total[1::2])
    assert float(total.abs().max()) > 0
    assert {e["reason"] for e in sampler.events() if e["kind"] == "episode"} == {"turns"}


def test_a_partner_that_reads_less_ends_the_conversation():
    partners = {"blue": Partner("partner0", TOKENIZER, 40)}
    (segment,), sampler = played(partners=partners, trained=1, limit=1)
    assert {e["reason"] for e in sampler.events() if e["kind"] == "episode"} == {"context"}
    assert bool(segment.arrays["truncated"].all())


class Given:
    """A client whose agents say what is written for them, in order; `None` never comes."""

    def __init__(self, said):
        self.said, self.open, self.aborted = {a: list(s) for a, s in said.items()}, {}, []

    def of(self, agent):
        self.agent = agent
        return self

    def submit(self, rows, *, version=-1, affinity=-1):
        ticket = len(self.open)
        self.open[ticket] = self.said[self.agent].pop(0)
        return ticket

    def ready(self, ticket):
        text = self.open[ticket]
        if text is None:
            return None
        tokens = TOKENIZER.answer(text)
        rows = reply_rows(tokens, [0.0] * len(tokens), [0] * len(tokens), terminated=True)
        return Reply(ticket, rows, 0)

    def abort(self, tickets):
        self.aborted += tickets


@pytest.mark.parametrize("first", [["hello"], []])
def test_a_tool_that_ends_the_conversation_of_one_ends_it_for_all(first):
    @tool(lane="inline")
    def leave() -> Turn:
        """Leave."""
        return Turn("bye", 2.0, terminated=True)

    task = make_chat_task(Duel, talk=TalkConfig(), tools=[leave])
    player = ChatPlayer(task, TOKENIZER, max_context=2000, max_tokens=80, seed=1)
    call = '<tool_call>{"name": "leave", "arguments": {}}</tool_call>'
    client = Given({"red": [*first, call], "blue": [*first, None]})
    conversation = player.open(task.train[0], number=0, seed=1, names=(0,), max_turns=TURNS)
    player.begin(conversation)
    for _ in range(8):
        player.step(client.of, [conversation])
    assert client.aborted == [ticket for ticket, text in client.open.items() if text is None]
    if first:
        assert conversation.over
        assert [len(side.said.turns) for side in conversation.sides.values()] == [2, 1]
        assert conversation.sides["red"].total("reward") == 2.0
    else:
        assert conversation.failure == "environment_failed: the conversation was over before blue had spoken"
    player.close()


# --------------------------------------------------------------------------------------------------------- measuring
class Codes(Duel):
    """Letters count by their codes: messages that differ hardly ever tie."""

    @staticmethod
    def worth(text):
        return sum(map(ord, text))


def test_an_evaluation_tells_what_each_agent_earned_and_measures_those_that_are_trained():
    def measure(partners):
        task = make_chat_task(Codes, talk=TalkConfig())
        given = {"num_tasks": 3, "max_turns": TURNS, "max_context": CONTEXT, "max_tokens": MAX_TOKENS, "seed": 5}
        evaluation, clients = ChatEvaluation(task, TOKENIZER, partners=partners, **given), clients_of(partners)
        for client in clients.values():
            client.sync()
        found = evaluation.run(clients, round_index=0)
        evaluation.close()
        return found

    both = measure({})
    assert both.returns == [0.0] * 3
    assert both.extra["turns"] == [6.0] * 3
    red = measure(BLUE)
    assert red.returns == red.extra["return/red"] == [-x for x in red.extra["return/blue"]]
    assert any(red.returns)
    assert red.extra["turns"] == [3.0] * 3


# ---------------------------------------------------------------------------------------------------------- settings
@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (["green=frozen"], "'green=frozen': it matches no agent; the agents are red, blue"),
        (["red=frozen", "red=policy"], "earlier entries take all agents"),
        ([".*=frozen"], "no agent is left that is trained"),
        (["red"], "write AGENT=WHO"),
        (["red=somebody"], "'somebody' is not understood"),
        (["red=model:"], "'model:' is not understood"),
        (["red=policy:other"], "a run trains one policy"),
        (["(=frozen"], "no regular expression"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_words(entries, words):
    with pytest.raises(ConfigError) as error:
        speakers_of(entries, ["red", "blue"])
    assert words in str(error.value)
    assert str(error.value).startswith("agents = ")


# ------------------------------------------------------------------------------------------------------------ a world
def test_the_signalling_game_pays_both_for_the_secret_and_nothing_else():
    assert not list(check_chat("signal", episodes=3))
    for secret in (1, 2, 3):
        for letter, heard in (("a", "a"), (" B ", "b"), ("d", "nothing"), ("ab", "nothing")):
            for answer in ("1", "I say 2.", "3", "none"):
                game = make_game("signal", num=3)
                (first,) = game.reset({"secret": secret}, seed=0).items()
                assert first[0] == "speaker"
                assert f"secret is {secret}" in first[1].heard[0]["content"]
                twin = make_game("signal", num=3)
                twin.set_state(game.get_state())
                (second,) = twin.step({"speaker": {"role": "assistant", "content": letter}}).items()
                assert second[0] == "listener"
                assert f"You hear {heard}." in second[1].heard[0]["content"]
                assert str(secret) not in second[1].heard[0]["content"].replace("from 1 to 3", "")
                turns = twin.step({"listener": {"role": "assistant", "content": answer}})
                paid = float(str(secret) in answer)
                assert {a: (t.earned["reward"], t.over) for a, t in turns.items()} == dict.fromkeys(game.agents, (paid, True))
    secrets = [make_game("signal").reset({}, seed=s)["speaker"].key for s in range(40)]
    assert sorted(set(secrets)) == ["1", "2", "3", "4"]
    with pytest.raises(DataError, match="reset"):
        make_game("signal").step({"speaker": {"role": "assistant", "content": "a"}})
