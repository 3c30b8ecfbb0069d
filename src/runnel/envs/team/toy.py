"""Tiny environments of two agents, with PettingZoo's parallel API, for tests and examples."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from runnel.core.errors import ConfigError

ByAgent = dict[str, Any]


class Whisper:
    """`sender` sees one of `num_symbols` symbols and whispers a word; then `receiver` hears the word, says a symbol and leaves;
    then `sender` says the symbol itself.

    If the receiver is right, both get 1; if the sender is right in the end, it gets 0.5. So at best the sender gets 1.5 and the
    receiver 1. What a word means is for the two to find out. While the receiver decides, the sender waits, and it is paid then.
    Where the symbol is not `shown_again` at the end, the sender must remember it while it waits.
    """

    possible_agents = ("sender", "receiver")

    def __init__(self, num_symbols: int = 3, shown_again: bool = True) -> None:
        if num_symbols < 2:
            raise ConfigError("env_kwargs.num_symbols", num_symbols, "use at least 2")
        self.num_symbols, self.shown_again = num_symbols, shown_again
        self.agents: list[str] = []
        self._t = self._symbol = self._word = 0
        self._rng = np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space:
        """The sender sees the symbol and whether it is the end, the receiver a word."""
        return spaces.Box(0.0, 1.0, (self.num_symbols + (agent == "sender"),), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        """A word, or a symbol."""
        return spaces.Discrete(self.num_symbols)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[ByAgent, ByAgent]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._t, self._symbol, self.agents = 0, int(self._rng.integers(self.num_symbols)), ["sender"]
        return {"sender": self._seen()}, {"sender": {}}

    def _seen(self) -> NDArray[np.float32]:
        shown = self._t == 0 or self.shown_again
        return np.append(self._hot(self._symbol) * np.float32(shown), np.float32(self._t > 0))

    def _hot(self, number: int) -> NDArray[np.float32]:
        hot = np.zeros(self.num_symbols, np.float32)
        hot[number] = 1.0
        return hot

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        self._t += 1
        if self._t == 1:
            self._word, self.agents = int(actions["sender"]), ["receiver"]
            return self._told({"receiver": self._hot(self._word)}, {}, over=())
        if self._t == 2:
            right = float(int(actions["receiver"]) == self._symbol)
            self.agents = ["sender"]
            seen = {"receiver": self._hot(self._word), "sender": self._seen()}
            return self._told(seen, {"sender": right, "receiver": right}, over=("receiver",))
        self.agents = []
        return self._told(
            {"sender": self._seen()}, {"sender": 0.5 * (int(actions["sender"]) == self._symbol)}, over=("sender",)
        )

    @staticmethod
    def _told(obs: ByAgent, rewards: ByAgent, *, over: tuple[str, ...]) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        return obs, rewards, {agent: agent in over for agent in obs}, dict.fromkeys(obs, False), {agent: {} for agent in obs}


class Secret:
    """Two agents see one of `num_symbols` symbols each, and are to say it; both get the share of those that are right. Each
    also holds half of a secret, a sign: `luck` times the product of both signs is paid beside.

    Neither sign alone says anything of the product. So to one agent that luck is noise, and a critic of both halves knows it.
    """

    possible_agents = ("left", "right")

    def __init__(self, num_symbols: int = 4, luck: float = 5.0) -> None:
        if num_symbols < 2:
            raise ConfigError("env_kwargs.num_symbols", num_symbols, "use at least 2")
        self.num_symbols, self.luck = num_symbols, luck
        self.agents: list[str] = []
        self._rng = np.random.default_rng(0)
        self._symbols: NDArray[np.int64] = np.zeros(2, np.int64)
        self._signs: NDArray[np.float32] = np.ones(2, np.float32)

    def observation_space(self, agent: str) -> spaces.Space:
        """The symbol and the sign."""
        return spaces.Box(-1.0, 1.0, (self.num_symbols + 1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        """A symbol."""
        return spaces.Discrete(self.num_symbols)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[ByAgent, ByAgent]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._symbols = list(self.possible_agents), self._rng.integers(self.num_symbols, size=2)
        self._signs = self._rng.choice(np.array([-1.0, 1.0], np.float32), size=2)
        return self._seen(), {agent: {} for agent in self.agents}

    def _seen(self) -> ByAgent:
        hot = np.eye(self.num_symbols, dtype=np.float32)[self._symbols]
        return {agent: np.append(hot[i], self._signs[i]) for i, agent in enumerate(self.possible_agents)}

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        said = np.array([int(actions[agent]) for agent in self.possible_agents])
        paid = float((said == self._symbols).mean() + self.luck * self._signs.prod())
        self.agents = []
        everybody = self.possible_agents
        over = dict.fromkeys(everybody, True), dict.fromkeys(everybody, False)
        return self._seen(), dict.fromkeys(everybody, paid), *over, {agent: {} for agent in everybody}


class Bids:
    """A game of two equal seats. In each of three to `most_rounds` rounds `left` and `right` bid 0, 1 or 2 at once; each bid
    beats the one below it, and 0 beats 2. Who is ahead after the last round gets 1, the other -1; if nobody is, both get 0.

    A round is rock, paper, scissors: whoever always bids the same is beaten, and nobody beats who draws all bids alike.
    """

    possible_agents = ("left", "right")

    def __init__(self, most_rounds: int = 6) -> None:
        if most_rounds < 3:
            raise ConfigError("env_kwargs.most_rounds", most_rounds, "use at least 3")
        self.most_rounds = most_rounds
        self.agents: list[str] = []
        self._rng = np.random.default_rng(0)
        self._t = self._rounds = self._lead = 0

    def observation_space(self, agent: str) -> spaces.Space:
        """The rounds to come, one's own lead, and a constant."""
        return spaces.Box(-float(self.most_rounds), float(self.most_rounds), (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        """A bid."""
        return spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[ByAgent, ByAgent]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._t, self._lead = list(self.possible_agents), 0, 0
        self._rounds = int(self._rng.integers(3, self.most_rounds + 1))
        return self._seen(), {agent: {} for agent in self.agents}

    def _seen(self) -> ByAgent:
        left, right = self.possible_agents
        rest = self._rounds - self._t
        return {left: np.array([rest, self._lead, 1], np.float32), right: np.array([rest, -self._lead, 1], np.float32)}

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        left, right = (int(actions[agent]) for agent in self.possible_agents)
        self._lead += (0, 1, -1)[(left - right) % 3]
        self._t += 1
        over = self._t == self._rounds
        paid = float(np.sign(self._lead)) if over else 0.0
        if over:
            self.agents = []
        rewards = dict(zip(self.possible_agents, (paid, -paid), strict=True))
        flags = dict.fromkeys(self.possible_agents, over), dict.fromkeys(self.possible_agents, False)
        return self._seen(), rewards, *flags, {agent: {} for agent in self.possible_agents}


class Halves:
    """`num_agents` agents see nothing, and say 0 or 1 once. All are paid 1 if one half of them, the first or the second, says 1
    and the other half 0; else nobody is paid.

    A policy that all of them share can do no better than to toss a coin, which is right with probability 2 / 2^n (Kuba et al.
    2022, arXiv:2109.11251, proposition 1).
    """

    def __init__(self, num_agents: int = 4) -> None:
        if num_agents < 2 or num_agents % 2:
            raise ConfigError("env_kwargs.num_agents", num_agents, "use an even number from 2 on")
        self.possible_agents = tuple(f"agent_{i}" for i in range(num_agents))
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space:
        """Nothing but a constant."""
        return spaces.Box(0.0, 1.0, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        """0 or 1."""
        return spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[ByAgent, ByAgent]:
        self.agents = list(self.possible_agents)
        return self._seen(), {agent: {} for agent in self.agents}

    def _seen(self) -> ByAgent:
        return {agent: np.ones(1, np.float32) for agent in self.possible_agents}

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        said = [int(actions[agent]) for agent in self.possible_agents]
        paid, everybody = float(self.pays(said)), self.possible_agents
        self.agents = []
        over = dict.fromkeys(everybody, True), dict.fromkeys(everybody, False)
        return self._seen(), dict.fromkeys(everybody, paid), *over, {agent: {} for agent in everybody}

    def pays(self, said: list[int]) -> bool:
        """Whether what the agents said is paid."""
        half = len(said) // 2
        return len(set(said[:half])) == len(set(said[half:])) == 1 and said[0] != said[-1]


class Volunteer(Halves):
    """`num_agents` agents see nothing, and say 0 or 1 once. All are paid 1 if exactly one of them says 1.

    What is best for an agent hangs on what the others become in the same update: where all learn at once from one batch, all
    come forward together, or all step back.
    """

    def pays(self, said: list[int]) -> bool:
        return sum(said) == 1


class Fleet:
    """`num_agents` drivers of one kind see one of `num_symbols` symbols each, and are to say it; who is right gets 1. On top of
    that everybody gets the weather, a random number of deviation `luck` that nobody sees.

    To a driver alone the weather is chance, and no critic can foresee it. The others have had the same. With `shared` all get
    the number of those that are right, and nobody is told whose merit it was.
    """

    def __init__(
        self, num_agents: int = 6, num_symbols: int = 5, luck: float = 10.0, num_steps: int = 4, shared: bool = False
    ) -> None:
        if num_agents < 1:
            raise ConfigError("env_kwargs.num_agents", num_agents, "use at least 1")
        self.possible_agents = tuple(f"driver_{i}" for i in range(num_agents))
        self.num_symbols, self.luck, self.num_steps, self.shared = num_symbols, luck, num_steps, shared
        self.agents: list[str] = []
        self._rng, self._t = np.random.default_rng(0), 0
        self._symbols: NDArray[np.int64] = np.zeros(num_agents, np.int64)

    def observation_space(self, agent: str) -> spaces.Space:
        """The symbol."""
        return spaces.Box(0.0, 1.0, (self.num_symbols,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        """A symbol."""
        return spaces.Discrete(self.num_symbols)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[ByAgent, ByAgent]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._t = list(self.possible_agents), 0
        return self._next(), {agent: {} for agent in self.agents}

    def _next(self) -> ByAgent:
        self._symbols = self._rng.integers(self.num_symbols, size=len(self.possible_agents))
        hot = np.eye(self.num_symbols, dtype=np.float32)
        return {agent: hot[symbol] for agent, symbol in zip(self.possible_agents, self._symbols, strict=True)}

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        self._t += 1
        weather, everybody = self.luck * float(self._rng.normal()), self.possible_agents
        right = {a: float(int(actions[a]) == symbol) for a, symbol in zip(everybody, self._symbols, strict=True)}
        if self.shared:
            right = dict.fromkeys(everybody, sum(right.values()))
        paid = {a: weather + merit for a, merit in right.items()}
        over = self._t == self.num_steps
        self.agents = [] if over else list(everybody)
        flags = dict.fromkeys(everybody, over), dict.fromkeys(everybody, False)
        return self._next(), paid, *flags, {agent: {} for agent in everybody}


class Swarm:
    """`num_agents` agents hold a sign each, and see those of the others that are in sight. Each is to say whether there are
    more of + than of -, its own and those in sight together; who is right gets 1, where both are equally many anybody.

    What an agent sees of the others is a set: an array `others` with a row for each, in an order that is drawn anew, and a
    mask `others_mask`. In rows of those that are out of sight stands noise. With more agents the array is longer, no more.
    """

    def __init__(self, num_agents: int = 3, sight: float = 0.8) -> None:
        if num_agents < 2:
            raise ConfigError("env_kwargs.num_agents", num_agents, "use at least 2")
        self.possible_agents = tuple(f"agent_{i}" for i in range(num_agents))
        self.sight = sight
        self.agents: list[str] = []
        self._rng = np.random.default_rng(0)
        self._balance: dict[str, float] = {}

    def observation_space(self, agent: str) -> spaces.Space:
        """The own sign, those of the others, and who of them is in sight."""
        num = len(self.possible_agents) - 1
        signs = {"self": spaces.Box(-1.0, 1.0, (1,), np.float32), "others": spaces.Box(-9.0, 9.0, (num, 1), np.float32)}
        return spaces.Dict({**signs, "others_mask": spaces.MultiBinary(num)})

    def action_space(self, agent: str) -> spaces.Space:
        """1: more of +."""
        return spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[ByAgent, ByAgent]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, num = list(self.possible_agents), len(self.possible_agents)
        signs = self._rng.choice(np.array([-1.0, 1.0], np.float32), size=num)
        seen = {}
        for i, agent in enumerate(self.possible_agents):
            others = self._rng.permutation(np.delete(signs, i)).reshape(-1, 1)
            there = self._rng.random(num - 1) < self.sight
            self._balance[agent] = float(signs[i] + others[there].sum())
            noise = np.clip(self._rng.normal(size=others.shape) * 3.0, -9.0, 9.0).astype(np.float32)
            shown = np.where(there[:, None], others, noise)
            seen[agent] = {"self": signs[i : i + 1], "others": shown, "others_mask": there.astype(np.int8)}
        self._seen = seen
        return seen, {agent: {} for agent in self.agents}

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        everybody = self.possible_agents
        paid = {a: float(self._balance[a] == 0.0 or (self._balance[a] > 0.0) == bool(actions[a])) for a in everybody}
        self.agents = []
        over = dict.fromkeys(everybody, True), dict.fromkeys(everybody, False)
        return self._seen, paid, *over, {agent: {} for agent in everybody}
