"""Two small games of poker on tensors, as tables over the nodes of their betting trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec, TeamSpec
from runnel.envs.device.arrays import Array, Constants, module_of
from runnel.envs.device.base import ArrayEnv, Leaves
from runnel.envs.device.team import TeamWorld
from runnel.envs.spaces import MASK

PLAYERS = ("player_0", "player_1")
NOBODY = -1


@dataclass
class Betting:
    """A place in the betting: the moves of each round so far, what both have put in, who decides (`NOBODY`: it is over), who
    has folded, and the next node of each move."""

    rounds: tuple[tuple[int, ...], ...]
    stakes: tuple[int, int]
    player: int
    folded: int = NOBODY
    after: dict[int, int] | None = None


class Poker(TeamWorld, ArrayEnv):
    """A game of two players with one private card each, and perhaps a public one, given by its betting tree.

    `strength[card, public]` decides a showdown. The winner gets what the loser has put in; a tie pays nothing. Whoever does
    not decide waits. A move that the mask forbids counts as the one after it that is open, or else the one before it.
    """

    max_steps = 0

    def __init__(self, tree: list[Betting], strength: Array, *, num_moves: int, moves_of_round: int, bits: Array) -> None:
        num_cards, num_rounds = len(strength), len(tree[-1].rounds)
        self._num_cards, public = num_cards, num_cards if num_rounds > 1 else 0
        size = 2 + num_cards + public + num_rounds * moves_of_round * bits.shape[1]
        agent = EnvSpec({"obs": ArraySpec((size,))}, ActionSpec("discrete", num_actions=num_moves), has_mask=True)
        self.spec = TeamSpec(dict.fromkeys(PLAYERS, agent), zero_sum=True)
        open_moves = np.array([[move in (n.after or ()) for move in range(num_moves)] for n in tree])
        self._constants = Constants(
            after=np.array([[_after(n, move) for move in range(num_moves)] for n in tree]),
            legal=np.where(open_moves.any(1, keepdims=True), open_moves, True)[:, None],
            player=np.array([n.player for n in tree]),
            decides=np.array([[n.player == p for p in range(2)] for n in tree]),
            over=np.array([[n.player == NOBODY] * 2 for n in tree]),
            # what both get, by who has the better cards: player 0, nobody, player 1
            paid=np.array([_paid(n) for n in tree], np.float32),
            strength=strength,
            mine=_private(size, num_cards),
            public=_public(size, num_cards, [len(n.rounds) > 1 for n in tree]),
            betting=_betting(size, tree, moves_of_round, bits),
            seats=np.arange(2),
        )

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        drawn = torch.rand(num, self._num_cards, generator=generator, device=generator.device).argsort(dim=1)
        return Batch(cards=drawn[:, :2].clone(), public=drawn[:, 2].clone(), node=torch.zeros_like(drawn[:, 0]))

    def transition(self, state: Leaves, actions: Sequence[Array]) -> tuple[Leaves, Array, Array]:
        constants, xp = self._constants.beside(state["node"]), module_of(state["node"])
        move = xp.where(constants["player"][state["node"]] == 1, actions[0][:, 1], actions[0][:, 0])
        node = constants["after"][state["node"], move]
        strength = constants["strength"][state["cards"], state["public"][:, None]]
        better = 1 + xp.sign(strength[:, 1] - strength[:, 0])
        following = {"cards": state["cards"], "public": state["public"], "node": node}
        return following, constants["paid"][node, better], constants["over"][node]

    def active(self, state: Leaves) -> Array:
        return self._constants.beside(state["node"])["decides"][state["node"]]

    def observe(self, state: Leaves) -> Sequence[Leaves]:
        constants, node = self._constants.beside(state["node"]), state["node"]
        shared = constants["betting"][node] + constants["public"][node, state["public"]]
        obs = constants["mine"][constants["seats"], state["cards"]] + shared[:, None]
        mask = module_of(node).broadcast_to(constants["legal"][node], (len(node), 2, constants["legal"].shape[-1]))
        return [{"obs": obs, MASK: mask}]


class Kuhn(Poker):
    """Kuhn poker (Kuhn 1950), as `kuhn_poker` of OpenSpiel. Both players put in 1 and get one of three cards. In turn they pass
    (0) or bet 1 more (1): a bet is answered by a bet (then cards are shown) or given up by a pass; two passes show the cards.

    Rewards are chips won or lost, at the end. Observation (11): which player, its card, and of each of three moves whether it
    was a pass or a bet, which is OpenSpiel's `information_state_tensor`. Player 0 begins, and loses 1/18 at best play.
    """

    name = "tensor:Kuhn"

    def __init__(self) -> None:
        strength = np.repeat(np.arange(3)[:, None], 3, axis=1)
        super().__init__(kuhn_tree(), strength, num_moves=2, moves_of_round=3, bits=np.eye(2, dtype=np.float32))


class Leduc(Poker):
    """Leduc poker (Southey et al. 2005, arXiv:1207.1411), as `leduc_poker` of OpenSpiel: six cards, two of each rank.

    Both players put in 1 and get a card; after a round of betting a public card is shown, and there is a second round. Moves
    are fold (0, only against a raise), call (1) and raise (2, at most twice a round), by 2 and in the second round by 4. Who
    has the rank of the public card wins, else the higher rank; equal ranks share.

    Rewards are chips won or lost, at the end. Observation (30): which player, its card, the public card (zeros before it is
    shown), and of four moves a round whether each was a call or a raise: OpenSpiel's `information_state_tensor`.
    """

    name = "tensor:Leduc"

    def __init__(self) -> None:
        rank = np.arange(6) // 2
        strength = rank[:, None] + 3 * (rank[:, None] == rank[None])
        bits = np.array([[0, 0], [1, 0], [0, 1]], np.float32)
        super().__init__(leduc_tree(), strength, num_moves=3, moves_of_round=4, bits=bits)


def kuhn_tree() -> list[Betting]:
    """The nodes of Kuhn poker: 4 at which somebody decides, 5 ends."""
    tree: list[Betting] = []

    def grow(moves: tuple[int, ...], stakes: tuple[int, int]) -> int:
        bets, player = sum(moves), len(moves) % 2
        node = Betting((moves,), stakes, player)
        tree.append(node)
        place = len(tree) - 1
        if bets == 2 or moves == (0, 0):
            node.player = NOBODY
        elif bets == 1 and moves[-1] == 0:
            node.player, node.folded = NOBODY, 1 - player
        else:
            raised = (stakes[0] + 1, stakes[1]) if player == 0 else (stakes[0], stakes[1] + 1)
            node.after = {0: grow((*moves, 0), stakes), 1: grow((*moves, 1), raised)}
        return place

    grow((), (1, 1))
    return tree


def leduc_tree() -> list[Betting]:
    """The nodes of Leduc poker: 6 at which somebody decides in the first round and 30 in the second, and 49 ends."""
    tree: list[Betting] = []

    def grow(rounds: tuple[tuple[int, ...], ...], stakes: tuple[int, int], folded: int = NOBODY) -> int:
        moves = rounds[-1]
        player = len(moves) % 2
        node = Betting(rounds, stakes, player, folded)
        tree.append(node)
        place = len(tree) - 1
        if folded != NOBODY:
            node.player = NOBODY
            return place
        if len(moves) > 1 and moves[-1] == 1:  # a call closes a round, unless it is the first move
            if len(rounds) == 2:
                node.player = NOBODY
                return place
            tree.pop()
            return grow((*rounds, ()), stakes)
        raises, most = moves.count(2), max(stakes)
        node.after = {1: grow((*rounds[:-1], (*moves, 1)), (most, most))}
        if stakes[player] < most:
            node.after[0] = grow((*rounds[:-1], (*moves, 0)), stakes, player)
        if raises < 2:
            put = most + 2 * len(rounds)
            node.after[2] = grow((*rounds[:-1], (*moves, 2)), (put, stakes[1]) if player == 0 else (stakes[0], put))
        return place

    grow(((),), (1, 1))
    return sorted_by_rounds(tree)


def sorted_by_rounds(tree: list[Betting]) -> list[Betting]:
    """The same tree with the nodes of later rounds behind those of earlier ones; the first node stays the first."""
    order = sorted(range(len(tree)), key=lambda i: (len(tree[i].rounds), i))
    place = {old: new for new, old in enumerate(order)}
    for node in tree:
        node.after = None if node.after is None else {move: place[i] for move, i in node.after.items()}
    return [tree[i] for i in order]


def _after(node: Betting, move: int) -> int:
    """The node after a move; a forbidden one counts as the next open one above it, else below it. After an end: the first."""
    if not node.after:
        return 0
    above = [other for other in sorted(node.after) if other >= move]
    return node.after[above[0] if above else max(node.after)]


def _paid(node: Betting) -> list[list[float]]:
    """What both players get at a node, if player 0 has the better cards, equal ones, or worse ones. `[3, 2]`"""
    nothing = [0.0, 0.0]
    if node.player != NOBODY:
        return [nothing] * 3
    # the winner gets what the other one has put in
    won = [[float(node.stakes[1]), -float(node.stakes[1])], [-float(node.stakes[0]), float(node.stakes[0])]]
    return [won[0], nothing, won[1]] if node.folded == NOBODY else [won[1 - node.folded]] * 3


def _private(size: int, num_cards: int) -> Array:
    """What a player knows of itself: its seat and its card. `[2, cards, size]`"""
    found = np.zeros((2, num_cards, size), np.float32)
    for seat in range(2):
        found[seat, :, seat] = 1.0
        found[seat, :, 2 : 2 + num_cards] = np.eye(num_cards)
    return found


def _public(size: int, num_cards: int, shown: list[bool]) -> Array:
    """The public card, at nodes where it is shown. `[nodes, cards, size]`"""
    found = np.zeros((len(shown), num_cards, size), np.float32)
    for node, visible in enumerate(shown):
        if visible:
            found[node, :, 2 + num_cards : 2 + 2 * num_cards] = np.eye(num_cards)
    return found


def _betting(size: int, tree: list[Betting], moves_of_round: int, bits: Array) -> Array:
    """The moves so far, as the last numbers of an observation. `[nodes, size]`"""
    width = bits.shape[1]
    first = size - len(tree[-1].rounds) * moves_of_round * width
    found = np.zeros((len(tree), size), np.float32)
    for row, node in zip(found, tree, strict=True):
        for r, moves in enumerate(node.rounds):
            for i, move in enumerate(moves):
                at = first + (r * moves_of_round + i) * width
                row[at : at + width] = bits[move]
    return found
