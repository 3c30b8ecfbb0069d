"""Games in which agents decide at once and are paid by a table, on tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike

from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec, TeamSpec
from runnel.envs.device.arrays import Array, Constants, module_of
from runnel.envs.device.base import ArrayEnv, Leaves
from runnel.envs.device.team import TeamWorld


class MatrixGame(TeamWorld, ArrayEnv):
    """A game in normal form: each agent chooses a row of its own, and a table pays them.

    `payoffs` is `[A, n_0, n_1, ...]`: what agent a gets when agent 0 plays the first index, agent 1 the second, and so on. A
    table `[n_0, n_1, ...]` of as many dimensions as agents pays all of them alike (`shared`). It is played `rounds` times.
    Observation: a 1, and if there are several rounds, what each agent played in the one before, as one-hots (zeros at first).

    The default is the prisoner's dilemma: 0 is to be silent, 1 to talk.
    """

    name = "tensor:MatrixGame"

    def __init__(
        self,
        payoffs: ArrayLike = (((-1.0, -3.0), (0.0, -2.0)), ((-1.0, 0.0), (-3.0, -2.0))),
        *,
        shared: bool = False,
        rounds: int = 1,
    ) -> None:
        table = _table(payoffs)
        if shared:
            table = np.broadcast_to(table, (table.ndim, *table.shape))
        self.max_steps, self._rounds = 0, rounds
        if rounds < 1:
            raise ConfigError("env_kwargs.rounds", rounds, "play at least one round")
        num_agents, choices = len(table), table.shape[1:]
        if len(choices) != num_agents or num_agents < 1 or min(choices) < 1:
            fix = "give [agents, choices of agent 0, choices of agent 1, ...], or a table of these choices with shared=True"
            raise ConfigError("env_kwargs.payoffs", list(table.shape), fix)
        size = 1 + (sum(choices) if rounds > 1 else 0)
        obs = {"obs": ArraySpec((size,))}
        names = [f"player_{i}" if num_agents == 2 and not shared else f"agent_{i}" for i in range(num_agents)]
        specs = [EnvSpec(obs, ActionSpec("discrete", num_actions=n)) for n in choices]
        self.spec = TeamSpec(dict(zip(names, specs, strict=True)), zero_sum=not table.sum(0).any())
        self._kinds, self._num = self.spec.kinds, num_agents
        # the table as a list over joint choices, and how far a choice of each agent moves in it
        strides = [int(np.prod(choices[i + 1 :])) for i in range(num_agents)]
        self._strides = strides
        offsets = np.cumsum([0, *choices[:-1]]) + 1
        hot = np.zeros((table[0].size, size), np.float32)
        for joint, each in enumerate(np.ndindex(*choices)):
            hot[joint, [0, *(offsets + each if rounds > 1 else ())]] = 1.0
        start = np.zeros((1, size), np.float32)
        start[0, 0] = 1.0
        self._constants = Constants(
            paid=np.ascontiguousarray(table.reshape(num_agents, -1).T, np.float32),
            # what is seen, by the joint choice before; the last one is that of the first round
            seen=np.concatenate([hot, start]),
        )
        self._first = table[0].size

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        zeros = torch.zeros(num, dtype=torch.int64, device=generator.device)
        return Batch(joint=zeros + self._first, round=zeros)

    def transition(self, state: Leaves, actions: Sequence[Array]) -> tuple[Leaves, Array, Array]:
        constants, xp = self._constants.beside(state["joint"]), module_of(state["joint"])
        joint = state["joint"] * 0
        for places, chosen in zip(self._kinds, actions, strict=True):
            for i, place in enumerate(places):
                joint = joint + chosen[:, i] * self._strides[place]
        now = state["round"] + 1
        over = xp.broadcast_to((now >= self._rounds)[:, None], (len(now), self._num))
        return {"joint": joint, "round": now}, constants["paid"][joint], over

    def observe(self, state: Leaves) -> Sequence[Leaves]:
        seen, xp = self._constants.beside(state["joint"])["seen"][state["joint"]], module_of(state["joint"])
        return [{"obs": xp.broadcast_to(seen[:, None], (len(seen), len(kind), seen.shape[1]))} for kind in self._kinds]


class RockPaperScissors(MatrixGame):
    """Rock, paper, scissors: 1 for who wins, -1 for who loses, 0 for both if they play the same. Best play is to mix evenly."""

    name = "tensor:RockPaperScissors"

    def __init__(self, *, rounds: int = 1) -> None:
        wins = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
        super().__init__(np.stack([wins, -wins]), rounds=rounds)


class Climbing(MatrixGame):
    """The climbing game (Claus and Boutilier 1998): both are paid 11 for (0, 0), but 0 is punished unless both choose it."""

    name = "tensor:Climbing"

    def __init__(self, *, rounds: int = 1) -> None:
        super().__init__([[11.0, -30.0, 0.0], [-30.0, 7.0, 6.0], [0.0, 0.0, 5.0]], shared=True, rounds=rounds)


class Penalty(MatrixGame):
    """The penalty game (Claus and Boutilier 1998): both are paid 10 for (0, 0) or (2, 2), and `penalty` if one plays 0 and the
    other 2."""

    name = "tensor:Penalty"

    def __init__(self, penalty: float = -10.0, *, rounds: int = 1) -> None:
        super().__init__([[10.0, 0.0, penalty], [0.0, 2.0, 0.0], [penalty, 0.0, 10.0]], shared=True, rounds=rounds)


class TwoStep(TeamWorld, ArrayEnv):
    """The two-step game of QMIX (Rashid et al. 2018, arXiv:1803.11485, sec. 5): in the first step the choice of `agent_0` (and
    nothing else) says which table pays both agents in the second.

    After 0 both get 7, whatever they do. After 1 they get 0 or 1, but 8 if both choose 1. So at best they get 8; a mixer that
    adds up values by agent (VDN) finds 7. Observation: in which of three states the game is, and which agent it is, as
    one-hots. The global state is the first of these.
    """

    name = "tensor:TwoStep"
    max_steps = 0

    def __init__(self) -> None:
        agent = EnvSpec({"obs": ArraySpec((5,))}, ActionSpec("discrete", num_actions=2))
        self.spec = TeamSpec({"agent_0": agent, "agent_1": agent})
        self.state_spec = ArraySpec((3,))
        paid = np.zeros((3, 2, 2), np.float32)
        paid[1], paid[2] = 7.0, [[0.0, 1.0], [1.0, 8.0]]
        stages = np.eye(3, dtype=np.float32)
        seen = np.concatenate([np.repeat(stages[:, None], 2, 1), np.repeat(np.eye(2, dtype=np.float32)[None], 3, 0)], 2)
        self._constants = Constants(paid=paid, seen=seen, stages=stages)

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        return Batch(stage=torch.zeros(num, dtype=torch.int64, device=generator.device))

    def transition(self, state: Leaves, actions: Sequence[Array]) -> tuple[Leaves, Array, Array]:
        stage, first, second = state["stage"], actions[0][:, 0], actions[0][:, 1]
        xp, shape = module_of(stage), (len(stage), 2)
        paid = self._constants.beside(stage)["paid"][stage, first, second]
        over = xp.broadcast_to((stage > 0)[:, None], shape)
        return {"stage": xp.where(stage > 0, stage, 1 + first)}, xp.broadcast_to(paid[:, None], shape), over

    def observe(self, state: Leaves) -> Sequence[Leaves]:
        return [{"obs": self._constants.beside(state["stage"])["seen"][state["stage"]]}]

    def global_state(self, state: Leaves) -> Array:
        return self._constants.beside(state["stage"])["stages"][state["stage"]]


def _table(payoffs: ArrayLike) -> Array:
    """A pay-off table as an array of finite numbers."""
    try:
        table = np.asarray(payoffs, np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError("env_kwargs.payoffs", payoffs, f"it is no table of numbers ({error})") from error
    if not table.ndim or not np.isfinite(table).all():
        raise ConfigError("env_kwargs.payoffs", payoffs, "give a table of finite numbers")
    return table
