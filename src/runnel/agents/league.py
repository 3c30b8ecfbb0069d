"""Self-play with a pool: live learners, frozen copies of them, and who plays whom.

After some updates a copy of the live policy is frozen and joins the pool. Opponents are drawn from the pool by win rates:
fictitious self-play (Heinrich et al. 2015, arXiv:1506.01698), prioritised fictitious self-play and the roles of AlphaStar's
league (Vinyals et al. 2019, "Grandmaster level in StarCraft II using multi-agent reinforcement learning").

    main             plays itself (`latest`) and the pool (`pick`)
    exploiter        plays main alone, and begins anew once it wins or takes too long: it finds main's weak spots
    league exploiter plays the pool by PFSP, and begins anew likewise: it finds what nobody in the pool can answer

Pool, results, ratings and probabilities are parameters and state of this learner: they travel with each version, so who plays
whom depends on nothing but seed and data, and resumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from runnel.agents.outcomes import Games, Outcomes, rows_of
from runnel.agents.pool import FrozenPool
from runnel.agents.team import set_members, takes_of
from runnel.core.bounds import bounded, check_bounds
from runnel.core.contracts.learning import HasRng, Learner, LoadsInitialParams, Update
from runnel.core.errors import ConfigError
from runnel.core.lineups import number_of
from runnel.core.records import Batch, Segment
from runnel.core.resuming import OnResume, may_change, stays
from runnel.core.state import State
from runnel.core.trajectories import ACTIVE
from runnel.ops.matchmaking import PICKS, pfsp

MAIN, EXPLOITER, LEAGUE_EXPLOITER = "main", "exploiter", "league-exploiter"
ROW_EVERY = 10
"""Updates between two rows of league.jsonl while the pool stays as it is."""


@dataclass(frozen=True)
class PoolConfig:
    """The pool of frozen policies, who joins it, and who is drawn from it."""

    on_resume: ClassVar[OnResume] = stays(
        *("size", "openings", "exploiters", "league_exploiters"), why="places and open episodes are part of the checkpoint"
    ) | may_change("every", "beat", "latest", "pick", "power", "floor", "window", "exploiter_wins", "exploiter_updates")

    size: int = bounded(16, at_least=2)
    """Frozen policies that are kept. The first, from before training, always stays; of the others the one that is picked least
    makes room."""
    every: int = bounded(50, at_least=0)
    """Freeze a copy of the live policy every so many updates; 0: only as `beat` says."""
    beat: float = bounded(0.0, at_least=0, below=1)
    """Freeze a copy as soon as the live policy beats every member of the pool with this win rate (a draw is half a win); 0:
    only as `every` says."""
    latest: float = bounded(0.5, at_least=0, at_most=1)
    """Probability that an opponent is the live policy itself, not a member of the pool."""
    pick: Literal["uniform", "latest", "pfsp", "even", "nash", "risk_averse"] = "pfsp"
    """Which member it is otherwise. uniform: all alike. latest: the newest. pfsp: those that the live policy loses to,
    (1 - win)^power. even: those of equal strength, win (1 - win). nash, risk_averse: by a meta-solver on the results of members
    against each other, as in PSRO (with `latest` 0: with learned best responses)."""
    power: float = bounded(2.0, at_least=0, finite=True)
    """pfsp: how sharply hard opponents are preferred."""
    floor: float = bounded(0.1, at_least=0, at_most=1)
    """All but uniform and latest: the share of opponents that are picked uniformly, so that no win rate grows old."""
    window: int = bounded(200, at_least=1)
    """Games against a member, from each seat, over which win rates fade."""
    openings: int = bounded(0, at_least=0)
    """Most moves of each seat at the beginning of an episode that are drawn uniformly; how many is drawn for each seat anew.
    Nothing is learned from them. For games in which good players would always play the same few lines."""
    exploiters: int = bounded(0, at_least=0)
    """Further live policies that play the main one alone. Each has a learner of its own."""
    league_exploiters: int = bounded(0, at_least=0)
    """Further live policies that play the pool by pfsp."""
    exploiter_wins: float = bounded(0.7, above=0.5, at_most=1)
    """An exploiter that beats main (a league exploiter: every member) with this win rate joins the pool and begins anew."""
    exploiter_updates: int = bounded(200, at_least=1)
    """So it does after this many updates in any case."""

    @property
    def roles(self) -> tuple[str, ...]:
        """The live policies; the first is the one that a run is about."""
        exploiters = [f"{EXPLOITER}-{i}" for i in range(self.exploiters)]
        return (MAIN, *exploiters, *(f"{LEAGUE_EXPLOITER}-{i}" for i in range(self.league_exploiters)))

    @property
    def places(self) -> int:
        """Memory for frozen policies: that of one who has to go is free only when its last episode is over, and each role
        may freeze one at a time."""
        return self.size + len(self.roles)

    def unused(self, group: str) -> dict[str, str]:
        """Settings of `group` that this pool does not read, and why."""
        found = {}
        if self.latest == 1.0:
            found["pick"] = "with latest 1 nobody plays the pool"
        if (self.pick != "pfsp" or self.latest == 1.0) and not self.league_exploiters:
            found["power"] = "is of pfsp; set pick"
        if (self.pick in ("uniform", "latest") or self.latest == 1.0) and not self.league_exploiters:
            found["floor"] = "is of picks that weigh members; set pick"
        if not self.exploiters + self.league_exploiters:
            found |= dict.fromkeys(("exploiter_wins", "exploiter_updates"), "there are no exploiters; set exploiters")
        return {f"{group}.{name}": why for name, why in found.items()}

    def check(self) -> None:
        """Raise a `ConfigError` for a pool that cannot work."""
        check_bounds(self, "pool.")
        if not self.every and not self.beat:
            raise ConfigError("pool.every", 0, "nobody would ever join the pool; set every, or beat")
        if self.pick == "nash" and find_spec("scipy") is None:
            raise ConfigError("pool.pick", self.pick, "needs scipy: pip install 'runnel[games]'; risk_averse does without")


class LeagueLearner:
    """Trains each role on its own rows of `stream`, keeps the pool, and draws opponents.

    `roles` are the learners of the live policies, by the names in `config.roles`; their parameters have equal names and shapes.
    Environments have `seats` agents; segments come from `num_lanes` vectors, `lanes_per_writer` of each actor.
    """

    def __init__(
        self,
        config: PoolConfig,
        roles: Mapping[str, Learner],
        *,
        stream: str,
        seats: int,
        num_lanes: int,
        lanes_per_writer: int = 1,
    ) -> None:
        config.check()
        if tuple(roles) != config.roles:
            raise ConfigError("roles", ", ".join(roles), f"the pool has the roles {', '.join(config.roles)}")
        self.config, self.members, self._stream = config, dict(roles), stream
        self.version = 0
        self._outcomes = Outcomes(seats=seats, num_lanes=num_lanes, lanes_per_writer=lanes_per_writer)
        self._first = {role: _copied(learner.state_dict()) for role, learner in self.members.items()}
        self._since = dict.fromkeys(self.members, 0)
        """The version at which each role began (anew)."""
        self.pool = FrozenPool(dict(roles), places=config.places, seats=seats)
        self.pool.freeze(0, roles[MAIN].params(), version=0)
        self._games: Games = Games()
        self._due: dict[str, bool] = dict.fromkeys(self.members, False)
        """Roles that wait for a place to be frozen into."""
        self._told = -1
        self._match()

    # ------------------------------------------------------------------------------------------------------------ update
    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """The batch of each role, of its own rows; the results of episodes that ended are kept for `update`."""
        mine, batch = segments[self._stream], Batch()
        for segment in mine:
            self._games.update(self._outcomes.see(segment))
        for i, (role, learner) in enumerate(self.members.items()):
            seen = [rows_of(segment, number_of(i, -1, len(self.members))) for segment in mine]
            if any(bool(segment.arrays[ACTIVE][:-1].any()) for segment in seen):
                found = learner.prepare({self._stream: seen}, progress=progress)
                batch |= {f"{role}/{key}": leaf for key, leaf in found.items()}
        return batch

    def update(self, batch: Batch) -> Update:
        """One update of each role that has rows in the batch; then results, new members, and the next probabilities."""
        whole = Update({})
        for role, learner in self.members.items():
            start = f"{role}/"
            mine = {key.removeprefix(start): x for key, x in batch.items() if key.startswith(start)}
            if mine:
                update = learner.update(Batch(mine))
                whole.metrics |= {f"{role}/{key}": value for key, value in update.metrics.items()}
                whole.events += update.events
        self.version += 1
        self.pool.add_games(self._games, window=self.config.window)
        self._games = Games()
        changed = self._freeze_due()
        self._match()
        whole.metrics |= self._metrics()
        if changed or self._told < 0 or self.version - self._told >= ROW_EVERY:
            self._told = self.version
            self.pool.verify()
            whole.events.append({"kind": "league", **self.pool.row(self.version, self._draw_of(0))})
        return whole

    def _metrics(self) -> dict[str, float]:
        wins = self.pool.standing(0, self.config.power, self.config.floor).wins
        return {
            "league/win_rate": float(wins.mean()),
            "league/worst_win_rate": float(wins.min()),
            "league/members": float(len(wins)),
            "league/elo": self.pool.ratings[number_of(0, -1, len(self.members))],
        }

    # -------------------------------------------------------------------------------------------------------------- pool
    def _freeze_due(self) -> bool:
        """Freeze whoever is due and finds a place; whether the pool has changed."""
        changed = False
        for i, role in enumerate(self.members):
            self._due[role] = self._due[role] or self._is_due(i, role)
            if self._due[role] and self.pool.make_room(self.config.size, self._draw_of(0), self._outcomes, self.version):
                self.pool.freeze(i, self.members[role].params(), version=self.version)
                self._due[role], changed = False, True
                if role != MAIN:
                    self._begin_anew(i, role)
        return changed

    def _is_due(self, i: int, role: str) -> bool:
        c = self.config
        if role == MAIN:
            worst = float(self.pool.standing(i).wins.min())
            return bool(c.every and self.version % c.every == 0) or bool(c.beat and worst >= c.beat)
        wins = self.pool.wins_against_main(i) if role.startswith(EXPLOITER) else float(self.pool.standing(i).wins.min())
        return wins >= c.exploiter_wins or self.version - self._since[role] >= c.exploiter_updates

    def _begin_anew(self, i: int, role: str) -> None:
        """Give an exploiter the parameters and the optimiser that it began with."""
        learner = self.members[role]
        now = learner.state_dict()
        kept = {"version", *(learner.own_state if isinstance(learner, HasRng) else ())}
        learner.load_state_dict({**_copied(self._first[role]), **{key: x for key, x in now.items() if key in kept}})
        self._since[role] = self.version
        self.pool.forget_results(i)

    def _match(self) -> None:
        """Set the probabilities of the next episodes."""
        draw = torch.stack([self._draw_of(i) for i in range(len(self.members))])
        self.pool.set_draw(draw, torch.full((len(self.members),), 1.0 / len(self.members), dtype=torch.float64))

    def _draw_of(self, i: int) -> Tensor:
        """The probability of each place, live ones first, as an opponent of role i. `[R + K]` float64"""
        c, role = self.config, list(self.members)[i]
        found = torch.zeros(len(self.members) + c.places, dtype=torch.float64)
        if role.startswith(EXPLOITER):
            found[0] = 1.0
            return found
        standing = self.pool.standing(i, c.power, c.floor)
        share = c.latest if role == MAIN else 0.0
        found[0] = share
        pick = PICKS[c.pick] if role == MAIN else pfsp
        found[self.pool.order()] = (1.0 - share) * pick(standing)
        return found

    # ------------------------------------------------------------------------------------------------------------- state
    def params(self) -> Mapping[str, Tensor]:
        """Live parameters, the frozen ones, and how opponents are drawn: the same tensors at every call."""
        live = {f"{role}/{key}": x for role, learner in self.members.items() for key, x in learner.params().items()}
        return {**live, **self.pool.params()}

    def base_params(self) -> Mapping[str, Tensor]:
        """What another run may start from: the live parameters of the main role."""
        main = self.members[MAIN]
        return {
            f"{MAIN}/{key}": x
            for key, x in (main.base_params() if isinstance(main, LoadsInitialParams) else main.params()).items()
        }

    def start_from(self, params: Mapping[str, Tensor]) -> None:
        """Start the main role from parameters of another run; the first member of the pool is then a copy of those."""
        mine = {key.removeprefix(f"{MAIN}/"): x for key, x in params.items()}
        main = self.members[MAIN]
        if isinstance(main, LoadsInitialParams):
            main.start_from(mine)
        else:
            with torch.no_grad():
                for key, x in main.params().items():
                    x.copy_(mine[key])
        self.pool.freeze(0, main.params(), version=0)
        self._match()

    @property
    def takes(self) -> Mapping[type, Sequence[str]]:
        """The live settings of the roles."""
        return takes_of(self.members)

    def set(self, name: str, value: object) -> None:
        """A setting of one role (`main/lr`), or of all."""
        set_members(self.members, name, value)

    def state_dict(self) -> State:
        return {
            "roles": {role: learner.state_dict() for role, learner in self.members.items()},
            "first": {role: _copied(state) for role, state in self._first.items() if role != MAIN},
            "since": dict(self._since),
            "due": dict(self._due),
            "pool": self.pool.state_dict(),
            "outcomes": self._outcomes.state_dict(),
            "version": self.version,
            "told": self._told,
        }

    def load_state_dict(self, state: State) -> None:
        for role, learner in self.members.items():
            learner.load_state_dict(state["roles"][role])
        self._first |= {role: _copied(first) for role, first in state["first"].items()}
        self._since, self._due = dict(state["since"]), dict(state["due"])
        self.pool.load_state_dict(state["pool"])
        self._outcomes.load_state_dict(state["outcomes"])
        self.version, self._told = state["version"], state["told"]
        if not self.version and len(self.pool.frozen()) > 1:
            raise ValueError("its pool has members that are named by versions of that run")
        self._games = Games()
        self._match()  # settings of the pool may have changed since


def _copied(state: Any) -> Any:
    """A copy of plain data and tensors that later updates do not write into."""
    if isinstance(state, Tensor):
        return state.clone()
    if isinstance(state, Mapping):
        return {key: _copied(x) for key, x in state.items()}
    return [_copied(x) for x in state] if isinstance(state, list | tuple) else state
