"""Two agents who tell each other where to go, on tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.spaces import ActionLeaf, ActionSpec, ArraySpec, EnvSpec, TeamSpec, multi_action
from runnel.envs.device.arrays import Array, Constants, module_of
from runnel.envs.device.base import ArrayEnv, Leaves
from runnel.envs.device.particles import NUM_MOVES, Plane, Sight
from runnel.envs.device.team import TeamWorld

NUM_AGENTS, NUM_LANDMARKS, NUM_WORDS, FORCE = 2, 3, 10, 5.0
SILENCE = NUM_WORDS
"""Nothing was said yet."""


class Reference(TeamWorld, ArrayEnv):
    """`simple_reference_v3` of mpe2 (Lowe et al. 2017, arXiv:1706.02275), with discrete actions: each of two agents is to reach
    one of three landmarks, which only the other one knows, in `max_cycles` steps.

    An action is a move and one of ten words: 5 times the word and 0 to 4 for nothing, left, right, down, up. An agent sees its
    velocity, the landmarks from where it is, the colour of the landmark to which the other is to go, and what the other said
    last. With `two_choices` an action is two numbers, the move and the word, each drawn by itself: a policy then learns to
    speak in far fewer steps. With the distances d of both to where they are to go, the agent that knows of distance i is paid

        -(1 - local_ratio) mean(d) - local_ratio d_i

    The global state is what both see, joined, as `state()` of mpe2.
    """

    name = "tensor:Reference"

    def __init__(self, local_ratio: float = 0.5, max_cycles: int = 25, two_choices: bool = False) -> None:
        if not 0.0 <= local_ratio <= 1.0:
            raise ConfigError("env_kwargs.local_ratio", local_ratio, "it is a share, from 0 to 1")
        if max_cycles < 1:
            raise ConfigError("env_kwargs.max_cycles", max_cycles, "use at least one step")
        self.max_steps, self._local, self._two = max_cycles, local_ratio, two_choices
        num = NUM_AGENTS + NUM_LANDMARKS
        self._plane = plane = Plane(NUM_AGENTS, NUM_LANDMARKS, sizes=[0.05] * num, touching=[False] * num)
        # no others are seen: what stands first is the agent's own velocity
        see = [plane.own(i)[:2] + plane.sight(i, range(NUM_AGENTS, num)) for i in range(NUM_AGENTS)]
        self._sight = Sight(plane.width, see)
        width = len(see[0]) + NUM_LANDMARKS + NUM_WORDS
        sizes = (NUM_MOVES, NUM_WORDS) if two_choices else (NUM_MOVES * NUM_WORDS,)
        choices = [ActionSpec("discrete", num_actions=num) for num in sizes]
        action = multi_action(choices, [ActionLeaf((), (2,), "int64", 2)]) if two_choices else choices[0]
        agent = EnvSpec({"obs": ArraySpec((width,))}, action)
        self.spec = TeamSpec({f"agent_{i}": agent for i in range(NUM_AGENTS)})
        self.state_spec = ArraySpec((NUM_AGENTS * width,))
        colours = np.full((NUM_LANDMARKS, NUM_LANDMARKS), 0.25, np.float32)
        np.fill_diagonal(colours, 0.75)
        heard = np.eye(NUM_WORDS + 1, NUM_WORDS, dtype=np.float32)
        self._constants = Constants(
            colours=colours, heard=heard, landmarks=np.arange(NUM_LANDMARKS)[:, None], never=np.zeros((1, NUM_AGENTS), bool)
        )

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        place = generator.device
        bodies = torch.empty(num, 2, self._plane.num_bodies, device=place).uniform_(-1.0, 1.0, generator=generator)
        goals = torch.randint(0, NUM_LANDMARKS, (num, NUM_AGENTS), generator=generator, device=place)
        return Batch(bodies=self._plane.place(bodies), goals=goals, said=torch.full_like(goals, SILENCE))

    def transition(self, state: Leaves, actions: Sequence[Array]) -> tuple[Leaves, Array, Array]:
        constants, xp = self._constants.beside(state["bodies"]), module_of(state["bodies"])
        act = actions[0]
        moves, said = (act[..., 0], act[..., 1]) if self._two else (act % NUM_MOVES, act // NUM_MOVES)
        rows = self._plane.step(state["bodies"].T, self._plane.pushes(moves, FORCE))
        reward = self._rewards(self._plane.positions(rows), state["goals"].T).T
        over = xp.broadcast_to(constants["never"], reward.shape)
        return {"bodies": rows.T, "goals": state["goals"], "said": said}, reward, over

    def _rewards(self, positions: Array, goals: Array) -> Array:
        """What each agent is paid, by what it knows: where the other is to go (`goals` `[A, E]`). `[A, E]`"""
        xp = module_of(positions)
        walkers, landmarks = xp.flip(positions[:, :NUM_AGENTS], (1,)), positions[:, NUM_AGENTS:]
        known = goals[:, None] == self._constants.beside(positions)["landmarks"]  # [A, L, E]
        apart = walkers[:, :, None] - landmarks[:, None]
        distance = (xp.sqrt(apart[0] * apart[0] + apart[1] * apart[1]) * known).sum(1)
        return distance.mean(0)[None] * (self._local - 1.0) - distance * self._local

    def observe(self, state: Leaves) -> Sequence[Leaves]:
        return [{"obs": self._seen(state)}]

    def _seen(self, state: Leaves) -> Array:
        constants, xp = self._constants.beside(state["bodies"]), module_of(state["bodies"])
        heard = constants["heard"][xp.flip(state["said"], (1,))]
        return xp.concatenate((self._sight.of(state["bodies"]), constants["colours"][state["goals"]], heard), 2)

    def global_state(self, state: Leaves) -> Array:
        return self._seen(state).reshape(len(state["bodies"]), -1)
