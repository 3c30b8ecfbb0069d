"""Settings of GRPO, and the newer policy algorithms, from rewards to the gradient by token, against their equations in numpy.

Groups have different numbers of rows, and rows different numbers of tokens. The equations are written out row by row and know
nothing of batches; gradients are their central differences. What carries no gradient is taken where the differences start.
"""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
import torch
from made_tokens import group

from runnel.core.contracts.learning import SingleProcess
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch
from runnel.llm.algorithms.a_lol import ALoL, ALoLConfig
from runnel.llm.algorithms.base import Part
from runnel.llm.algorithms.cispo import CISPO, CISPOConfig
from runnel.llm.algorithms.covariance import Covariance, CovarianceConfig, highest
from runnel.llm.algorithms.dapo import DAPO, DAPOConfig
from runnel.llm.algorithms.decoupled import DecoupledConfig, DecoupledPPO
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.algorithms.gspo import GSPO, GSPOConfig
from runnel.llm.algorithms.opmd import OPMD, OPMDConfig
from runnel.llm.algorithms.oreal import OREAL, OREALConfig
from runnel.llm.algorithms.p3o import P3O, P3OConfig
from runnel.llm.algorithms.pacs import PACS, PACSConfig
from runnel.llm.algorithms.ppo_max import PPOMax, PPOMaxConfig
from runnel.llm.algorithms.raft import RAFT, RAFTConfig
from runnel.llm.algorithms.reinforce import RLOO, ReinforceConfig
from runnel.llm.algorithms.reinforce_plus_plus import ReinforcePlusPlus, ReinforcePPConfig
from runnel.llm.algorithms.rl_plus import RLPlus, RLPlusConfig
from runnel.llm.algorithms.topr import TOPR, TOPRConfig
from runnel.llm.learning.batches import MicroBatch, join_rows, merge, split_tokens

LOW, HIGH, LONGEST = 0.1, 0.3, 6
BOTH = {"channels": {"exact": 1.0}, "max_tokens": LONGEST}
CLIP = {"clip_low": LOW, "clip_high": HIGH}
REWARDS = ([1.0, 0.0, 0.5, 0.0, 0.25], [0.0, 1.0, 0.75], [0.5, 0.5], [0.0, 1.0])
FIELDS = {"now": "now", "old": "logprob", "prox": "proximal_logprob", "ref": "reference_logprob", "value": "value"}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def made(seed=0, rewards=REWARDS):
    """Joined rows whose log-probabilities, as those of reference and proximal policy, have moved away from what sampled."""
    rng = np.random.default_rng(seed)
    rows = join_rows([group(rng, r) for r in rewards])
    old, mask = rows["logprob"].double(), rows["loss_mask"]
    moved = {k: torch.tensor(rng.normal(0.0, 0.4, size=len(old))) * mask for k in FIELDS.values() if k != "logprob"}
    rows |= {k: old + v for k, v in moved.items()}
    return Batch(rows | {"logprob": old, "value": moved["value"]})


def by_hand(rows):
    """Each row as arrays over its trained tokens, with its group and reward."""
    lengths, out = rows["row_length"].tolist(), []
    cut = {k: rows[name].split(lengths) for k, name in FIELDS.items()}
    for i, mask in enumerate(rows["loss_mask"].split(lengths)):
        fields = {k: v[i][mask].double().numpy() for k, v in cut.items()}
        out.append({"R": float(rows["rewards/exact"][i]), "g": int(rows["group"][i]), "n": int(mask.sum()), **fields})
    return out


def joined(algorithm, rows, budget):
    """What the learner sums over micro-batches for the policy's components, and its gradient by token."""
    batch = merge([algorithm.annotate(rows, SingleProcess())])
    logprob, at = rows["now"].clone().requires_grad_(True), torch.arange(len(rows["tokens"]))
    total = torch.zeros((), dtype=torch.float64)
    for some in split_tokens(torch.arange(len(rows["row_length"])), batch["unit"], batch["row_length"], budget):
        part = MicroBatch.of(Batch(batch | {"at": at}), some, device="cpu")
        for name, component in algorithm.components.items():
            if component.uses == "logprob" and component.kind in part.kinds:
                count = float((batch["component"] == component.kind).sum())
                outputs = Batch(logprob=logprob[part.fields["at"]])
                tokens = Part.of(part, component.kind, outputs, count=count, version=3)
                denominator = float(batch[f"denominator/{component.denominator or name}"].sum())
                total = total + component.coef * component.loss(tokens, denominator).value
    total.backward()
    return total.item(), logprob.grad[rows["loss_mask"]].numpy()


def check(algorithm, equation, seed=0, rows=None):
    """Value and gradient are those of `equation(rows, now)`, in one micro-batch and in many. Returns the gradient."""
    rows = made(seed) if rows is None else rows
    hand = by_hand(rows)
    start, step, slopes = [r["now"] for r in hand], 1e-6, []
    for i, r in enumerate(hand):
        for t in range(r["n"]):
            sides = []
            for sign in (1, -1):
                now = [x.copy() for x in start]
                now[i][t] += sign * step
                sides.append(equation(hand, now))
            slopes.append((sides[0] - sides[1]) / (2 * step))
    for budget in (1000, 12):
        value, gradient = joined(algorithm, rows, budget)
        assert value == pytest.approx(equation(hand, start), rel=1e-5, abs=1e-9)
        np.testing.assert_allclose(gradient, slopes, rtol=1e-4, atol=1e-6)
    return gradient


# ------------------------------------------------------------------------------------------------------- parts of equations
def others(rows, i):
    return [r["R"] for j, r in enumerate(rows) if r["g"] == rows[i]["g"] and j != i]


def relative(rows, by):
    """Rewards minus their group's mean, over a deviation."""
    out, everything = [], np.std([r["R"] for r in rows], ddof=1)
    for r in rows:
        mine = [x["R"] for x in rows if x["g"] == r["g"]]
        spread = {"group": np.std(mine, ddof=1), "batch": everything, "none": 1.0}[by]
        out.append((r["R"] - np.mean(mine)) / spread if np.std(mine) > 0 else 0.0)
    return out


def surrogate(ratio, advantage, low=LOW, high=HIGH, dual=None):
    clipped = np.clip(ratio, 0.0 if low is None else 1 - low, np.inf if high is None else 1 + high)
    gain = np.minimum(ratio * advantage, clipped * advantage)
    return np.where(np.asarray(advantage) < 0, np.maximum(gain, dual * advantage), gain) if dual else gain


def mean_of(rows, terms, how):
    """The mean of terms by token: of rows' means, of all, or of sums over rows times the longest."""
    if how == "sequence":
        return sum(t.mean() for t in terms) / len(rows)
    return sum(t.sum() for t in terms) / (len(rows) * LONGEST if how == "constant" else sum(r["n"] for r in rows))


def normal(x):
    return (x - x.mean()) / x.std()


def to_go(r, reward, kl):
    earned = -kl * (r["old"] - r["ref"])
    earned[-1] += reward
    return np.cumsum(earned[::-1])[::-1]


def split(values, rows):
    return np.split(values, np.cumsum([r["n"] for r in rows])[:-1])


# ------------------------------------------------------------------------------------------------------- GRPO's settings
@pytest.mark.parametrize(("normalise", "aggregation"), product(("group", "batch", "none"), ("sequence", "token", "constant")))
def test_normalisation_and_aggregation_of_grpo(normalise, aggregation):
    config = GRPOConfig(**CLIP, normalise=normalise, aggregation=aggregation)

    def equation(rows, now):
        credit = zip(rows, now, relative(rows, normalise), strict=True)
        return -mean_of(rows, [surrogate(np.exp(x - r["old"]), A) for r, x, A in credit], aggregation)

    check(GRPO(config, **BOTH), equation)


@pytest.mark.parametrize(
    ("low", "high", "dual"), [(0.1, 0.3, 1.2), (None, 0.3, None), (0.1, None, None), (None, None, None), (None, None, 1.2)]
)
def test_clips_of_grpo(low, high, dual):
    config = GRPOConfig(clip_low=low, clip_high=high, dual_clip=dual)

    def equation(rows, now):
        credit = zip(rows, now, relative(rows, "group"), strict=True)
        return -mean_of(rows, [surrogate(np.exp(x - r["old"]), A, low, high, dual) for r, x, A in credit], "sequence")

    dulled = check(GRPO(config, **BOTH), equation)
    plain = joined(GRPO(GRPOConfig(clip_low=low, clip_high=high), **BOTH), made(), 1000)[1]
    assert (np.abs(dulled - plain).max() > 1e-3) == (dual is not None), "a dual clip counts here, and nothing else does"


def test_settings_of_grpo_are_those_of_its_relatives():
    """DAPO is GRPO with other defaults, where no length is punished."""
    rows = made()
    one = DAPO(DAPOConfig(), **BOTH).annotate(rows, SingleProcess())
    other = GRPO(GRPOConfig(aggregation="token", clip_high=0.28), **BOTH).annotate(rows, SingleProcess())
    for name in ("advantage", "weight", "denominator/policy"):
        assert torch.equal(one[name], other[name])


def test_sequences_and_a_dual_clip_with_other_means():
    config = GSPOConfig(clip_low=LOW, clip_high=HIGH, dual_clip=1.05, normalise="none", aggregation="token")

    def equation(rows, now):
        credit = zip(rows, now, relative(rows, "none"), strict=True)
        terms = [surrogate(np.exp((x - r["old"]).mean()), A, dual=1.05) * np.ones(r["n"]) for r, x, A in credit]
        return -mean_of(rows, terms, "token")

    check(GSPO(config, **BOTH), equation)


# -------------------------------------------------------------------------------------------- weights of engine and learner
@pytest.mark.parametrize(("behaviour", "of"), product(("clamp", "mask"), ("token", "sequence")))
def test_truncated_and_masked_importance_sampling(behaviour, of):
    config = DecoupledConfig(**CLIP, behaviour=behaviour, behaviour_of=of, behaviour_low=0.5, behaviour_high=1.5, dual_clip=1.2)

    def equation(rows, now):
        terms = []
        for r, x, A in zip(rows, now, relative(rows, "group"), strict=True):
            gap = r["prox"] - r["old"]
            ratio = np.exp(gap if of == "token" else np.full(r["n"], gap.sum()))
            inside = (ratio >= 0.5) & (ratio <= 1.5)
            kept = np.clip(ratio, 0.5, 1.5) if behaviour == "clamp" else ratio * inside
            terms.append(kept * surrogate(np.exp(x - r["prox"]), A, dual=1.2))
        return -mean_of(rows, terms, "token")

    check(DecoupledPPO(config, **BOTH), equation)


def test_the_behaviour_may_be_what_was_left_after_the_cut():
    """Tokens that top_p left became more likely: their own probabilities are the behaviour's."""
    rows, algorithm = made(), DecoupledPPO(DecoupledConfig(behaviour_from="sampling_logprob"), **BOTH)
    with pytest.raises(ConfigError, match=r"behaviour_from.*sampling is not cut"):
        algorithm.annotate(rows, SingleProcess())
    rows["sampling_logprob"] = rows["logprob"] + 0.2 * rows["loss_mask"]
    plain = joined(DecoupledPPO(DecoupledConfig(), **BOTH), rows, 1000)[1]
    np.testing.assert_allclose(joined(algorithm, rows, 1000)[1], plain * np.exp(-0.2), rtol=1e-6)


@pytest.mark.parametrize("normalise", ["group", "batch"])
def test_cispo_bounds_the_weight_and_not_the_token(normalise):
    config = CISPOConfig(max_ratio=1.2, min_ratio=0.8, normalise=normalise)

    def equation(rows, now):
        terms = []
        for r, x, A in zip(rows, now, relative(rows, normalise), strict=True):
            terms.append(np.clip(np.exp(r["now"] - r["old"]), 0.8, 1.2) * A * x)
        return -mean_of(rows, terms, "token")

    gradient = check(CISPO(config, **BOTH), equation)
    credit = np.concatenate(
        [np.full(r["n"], A) for r, A in zip(by_hand(made()), relative(by_hand(made()), "group"), strict=True)]
    )
    assert np.all((gradient != 0) == (credit != 0)), "no token loses its gradient"


@pytest.mark.parametrize("baseline", [0.5, 0.1])
def test_topr_tapers_what_was_bad(baseline):
    def equation(rows, now):
        total = 0.0
        for r, x in zip(rows, now, strict=True):
            A = r["R"] - baseline
            total += (1.0 if A >= 0 else min(np.exp((r["now"] - r["old"]).sum()), 1.0)) * A * x.sum()
        return -total / len(rows)

    check(TOPR(TOPRConfig(baseline=baseline), **BOTH), equation)


@pytest.mark.parametrize(("ratio", "clip"), [("trajectory", 0.9), ("trajectory", 0.2), ("token", 0.2), ("token", 0.0)])
def test_a_lol_learns_from_what_was_better_than_expected(ratio, clip):
    def equation(rows, now):
        total = 0.0
        for i, (r, x) in enumerate(zip(rows, now, strict=True)):
            gap = r["now"] - r["old"]
            weight = np.clip(np.exp(gap.sum() if ratio == "trajectory" else gap), 1 - clip, 1 + clip)
            total += max(r["R"] - np.mean([*others(rows, i), r["R"]]), 0.0) * (weight * x).sum()
        return -total / len(rows)

    check(ALoL(ALoLConfig(ratio=ratio, clip=clip), **BOTH), equation)


# ------------------------------------------------------------------------------------------------- demonstrations in groups
@pytest.mark.parametrize(("focus", "aggregation"), [(0.0, "sequence"), (1.0, "token"), (2.5, "sequence")])
def test_rl_plus_weighs_the_demonstration_of_each_group(focus, aggregation):
    rows, num_tokens = made(), 50
    shown = rows["row_owner"].new_tensor([0, 5, 9])[:, None] == torch.arange(len(rows["row_length"]))
    by_token = torch.repeat_interleave(shown.any(dim=0), rows["row_length"])
    rows["policy_version"] = torch.where(by_token, -1, rows["policy_version"])
    rows["external_logprob"] = rows["proximal_logprob"]

    def equation(rows, now):
        terms = []
        for i, (r, x, A) in enumerate(zip(rows, now, relative(rows, "group"), strict=True)):
            if i not in (0, 5, 9):
                terms.append(surrogate(np.exp(x - r["old"]), A))
                continue
            old, pi = np.exp(r["prox"]), np.exp(x)
            author = (old + 1 / num_tokens) / 2
            terms.append(2 * pi / (author + old) * (1 - np.exp(r["now"])) ** focus * A)
        return -mean_of(rows, terms, aggregation)

    config = RLPlusConfig(**CLIP, focus=focus, aggregation=aggregation)
    algorithm = RLPlus(config, **BOTH, vocab_size=num_tokens)
    check(algorithm, equation, rows=rows)
    batch, hand = algorithm.annotate(rows, SingleProcess()), by_hand(rows)
    own = [r["R"] for i, r in enumerate(hand) if i not in (0, 5, 9)]
    assert batch["stats/reward/mean"].item() == pytest.approx(np.mean(own)), "the demonstration is none of the policy's"


# ----------------------------------------------------------------------------------------------------------- other losses
@pytest.mark.parametrize(("tau", "length_coef"), [(0.0, 0.0), (0.7, 0.0), (0.3, 0.5)])
def test_mirror_descent_and_its_length_reward(tau, length_coef):
    def equation(rows, now):
        rewards = []
        for r in rows:
            lengths = [x["n"] for x in rows if x["g"] == r["g"]]
            spread = max(lengths) - min(lengths)
            p = 0.5 - (r["n"] - min(lengths)) / spread if spread else 0.0
            rewards.append(r["R"] + length_coef * (p if r["R"] >= 0.5 else min(p, 0.0)))
        total = 0.0
        for r, x, reward in zip(rows, now, rewards, strict=True):
            A = reward - np.mean([w for w, other in zip(rewards, rows, strict=True) if other["g"] == r["g"]])
            total += A * x.sum() - 0.5 * tau * (x - r["old"]).sum() ** 2
        return -total / len(rows)

    check(OPMD(OPMDConfig(tau=tau, length_coef=length_coef), **BOTH), equation)


@pytest.mark.parametrize(("clip", "max_ratio", "kl"), [(0.2, 5.0, 0.0), (0.9, 1.1, 0.3), (None, 1.0, 0.0)])
def test_p3o_compares_the_pairs_of_a_group(clip, max_ratio, kl):
    def equation(rows, now):
        rewards = [r["R"] - kl * (r["old"] - r["ref"]).sum() for r in rows]
        moved = [(x - r["old"]).sum() for r, x in zip(rows, now, strict=True)]
        start = [(r["now"] - r["old"]).sum() for r in rows]
        total = 0.0
        for g in {r["g"] for r in rows}:
            mine = [i for i, r in enumerate(rows) if r["g"] == g]
            pairs, each = list(combinations(mine, 2)), 0.0
            for i, j in pairs:
                A, d = (rewards[i] - rewards[j]) / 2, moved[i] - moved[j]
                each += min(np.exp(start[i] + start[j]), max_ratio) * min(A * d, A * (np.clip(d, -clip, clip) if clip else d))
            total += len(mine) * each / len(pairs)
        return -total / len(rows)

    gradient = check(P3O(P3OConfig(clip=clip, max_ratio=max_ratio, kl_coef=kl), **BOTH), equation)
    shifted = made(rewards=[[x + 3.0 + g for x in some] for g, some in enumerate(REWARDS)])
    config = P3OConfig(clip=clip, max_ratio=max_ratio, kl_coef=kl)
    np.testing.assert_allclose(joined(P3O(config, **BOTH), shifted, 1000)[1], gradient, rtol=1e-4, atol=1e-6)


def test_p3o_on_fresh_samples_is_rloo():
    rows = made()
    fresh = Batch(rows | {"logprob": rows["now"].clone()})
    pairs, one = joined(P3O(P3OConfig(), **BOTH), fresh, 1000)[1], joined(RLOO(ReinforceConfig(), **BOTH), fresh, 1000)[1]
    np.testing.assert_allclose(pairs, one, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("beta", [1.0, 0.3])
def test_pacs_predicts_the_reward(beta):
    def equation(rows, now):
        score = [beta * (x - r["old"]).sum() for r, x in zip(rows, now, strict=True)]
        total = 0.0
        for i, r in enumerate(rows):
            rest = [s for j, s in enumerate(score) if rows[j]["g"] == r["g"] and j != i]
            p = 1 / (1 + np.exp(-(score[i] - np.mean(rest))))
            total += r["R"] * np.log(p) + (1 - r["R"]) * np.log(1 - p)
        return -total / len(rows)

    check(PACS(PACSConfig(beta=beta), **BOTH), equation)
    with pytest.raises(DataError, match="labels between 0 and 1, and got 0 to 2"):
        PACS(PACSConfig(), **BOTH).annotate(made(rewards=([0.0, 2.0],)), SingleProcess())


@pytest.mark.parametrize("weigh_right", [True, False])
def test_oreal_clones_what_is_right_and_pushes_what_is_wrong_away(weigh_right):
    config = OREALConfig(weigh_right=weigh_right, negative_coef=0.4, kl_coef=0.3)

    def equation(rows, now):
        right = [float(r["R"] >= 0.5) for r in rows]
        tokens = [sum(r["n"] for r, b in zip(rows, right, strict=True) if b == which) for which in (0.0, 1.0)]
        total = 0.0
        for i, (r, x) in enumerate(zip(rows, now, strict=True)):
            A = right[i] - np.mean([float(v >= 0.5) for v in others(rows, i)])
            if right[i]:
                total -= (A if weigh_right else 1.0) * x.sum() / tokens[1]
            else:
                total -= 0.4 * A * x.sum() / tokens[0]
            gap = r["ref"] - x
            total += 0.3 * (np.exp(gap) - gap - 1).sum() / sum(tokens)
        return total

    check(OREAL(config, **BOTH), equation)


@pytest.mark.parametrize("keep", ["best", "passing"])
def test_raft_imitates_what_is_kept(keep):
    def kept(rows):
        if keep == "passing":
            return [r["R"] >= 0.75 for r in rows]
        first = {}
        for i, r in enumerate(rows):
            if r["g"] not in first or r["R"] > rows[first[r["g"]]]["R"]:
                first[r["g"]] = i
        return [i in first.values() for i in range(len(rows))]

    def equation(rows, now):
        mine = [(r, x) for r, x, k in zip(rows, now, kept(rows), strict=True) if k]
        held = sum((np.exp(r["ref"] - x) - (r["ref"] - x) - 1).sum() for r, x in mine)
        return (0.2 * held - sum(x.sum() for _, x in mine)) / sum(r["n"] for r, _ in mine)

    check(RAFT(RAFTConfig(keep=keep, pass_reward=0.75, kl_coef=0.2), **BOTH), equation)
    batch = RAFT(RAFTConfig(keep=keep, pass_reward=0.75), **BOTH).annotate(made(), SingleProcess())
    assert batch["stats/reward/mean"].item() == pytest.approx(np.mean([x for r in REWARDS for x in r]), rel=1e-6)


# ------------------------------------------------------------------------------------------------- normalised over the batch
@pytest.mark.parametrize(
    ("baseline", "kl", "furthest", "cut"), [("none", 0.2, None, None), ("group", 0.1, None, 0.25), ("none", 0.0, 1.2, 0.25)]
)
def test_reinforce_plus_plus(baseline, kl, furthest, cut):
    config = ReinforcePPConfig(**CLIP, baseline=baseline, kl_coef=kl, max_advantage=furthest, max_log_ratio=cut)

    def equation(rows, now):
        start = [np.mean([*others(rows, i), r["R"]]) if baseline == "group" else 0.0 for i, r in enumerate(rows)]
        credit = normal(np.concatenate([to_go(r, r["R"] - b, kl) for r, b in zip(rows, start, strict=True)]))
        if furthest:
            credit = credit * (np.abs(credit) <= furthest)
        terms = []
        for r, x, A in zip(rows, now, split(credit, rows), strict=True):
            gap = x - r["old"]
            terms.append(surrogate(np.exp(np.clip(gap, -cut, cut) if cut else gap), A))
        return -mean_of(rows, terms, "token")

    check(ReinforcePlusPlus(config, **BOTH), equation)


def macro_gae(r, reward, kl, size, lam, gamma=1.0):
    """GAE over runs of `size` tokens, written from the end; advantage and return of each token."""
    earned = -kl * (r["old"] - r["ref"])
    earned[-1] += reward
    value = r["value"]
    runs = [range(s, min(s + size, r["n"])) for s in range(0, r["n"], size)]
    advantage, returns, ahead, follows = np.zeros(r["n"]), np.zeros(r["n"]), 0.0, 0.0
    for run in reversed(runs):
        own = np.mean([value[t] for t in run])
        ahead = sum(earned[t] for t in run) + gamma * follows - own + gamma * lam * ahead
        for t in run:
            advantage[t], returns[t] = ahead, ahead + own
        follows = own
    return advantage, returns


@pytest.mark.parametrize(
    ("size", "keep", "clip"), [(1, "all", 0.8), (3, "all", None), (2, "best_worst", 0.8), (2, "best", None)]
)
def test_ppo_max_with_macro_actions_and_filters(size, keep, clip):
    settings = {"kl_coef": 0.2, "macro": size, "keep": keep, "gae_lambda": 0.9, "reward_clip": clip, "advantage_clip": clip}
    algorithm = PPOMax(PPOMaxConfig(**CLIP, **settings), **BOTH)
    rows = made()

    def kept(hand):
        out = []
        for g in sorted({r["g"] for r in hand}):
            mine = [i for i, r in enumerate(hand) if r["g"] == g]
            ranked = [hand[i]["R"] for i in mine]
            best, worst = mine[int(np.argmax(ranked))], mine[int(np.argmin(ranked))]
            out += {"all": mine, "best": [best], "best_worst": sorted({best, worst} if max(ranked) > min(ranked) else {best})}[
                keep
            ]
        return out

    def credit(hand):
        chosen = kept(hand)
        rewards = np.array([hand[i]["R"] for i in chosen])
        if clip:
            rewards = np.clip((rewards - rewards.mean()) / rewards.std(), -clip, clip)
        found = [macro_gae(hand[i], R, 0.2, size, 0.9) for i, R in zip(chosen, rewards, strict=True)]
        advantage = normal(np.concatenate([a for a, _ in found]))
        return chosen, np.clip(advantage, -clip, clip) if clip else advantage, np.concatenate([b for _, b in found])

    def equation(hand, now):
        chosen, advantage, _ = credit(hand)
        mine = [hand[i] for i in chosen]
        terms = [surrogate(np.exp(now[i] - r["old"]), A) for i, r, A in zip(chosen, mine, split(advantage, mine), strict=True)]
        return -mean_of(mine, terms, "token")

    check(algorithm, equation, rows=rows)
    batch = algorithm.annotate(rows, SingleProcess())
    trained = batch["component"] != 0
    np.testing.assert_allclose(batch["return"][trained].numpy(), credit(by_hand(rows))[2], rtol=1e-4, atol=1e-6)


# ------------------------------------------------------------------------------------------------------- control of entropy
def covariances(rows):
    A = np.concatenate([np.full(r["n"], a) for r, a in zip(rows, relative(rows, "group"), strict=True)])
    old = np.concatenate([r["old"] for r in rows])
    return (old - old.mean()) * (A - A.mean())


@pytest.mark.parametrize("share", [1e-3, 0.2, 1.0])
def test_kl_cov_holds_the_tokens_with_the_highest_covariance(share):
    config = CovarianceConfig(how="kl", share=share, clip_low=None, clip_high=None, distance_coef=0.7)

    def equation(rows, now):
        found = covariances(rows)
        num = max(1, int(share * len(found)))
        held = split(found >= np.sort(found)[-num], rows)
        terms = []
        for r, x, A, h in zip(rows, now, relative(rows, "group"), held, strict=True):
            terms.append(np.exp(x - r["old"]) * A - 0.7 * h * np.abs(x - r["old"]))
        return -mean_of(rows, terms, "token")

    check(Covariance(config, **BOTH), equation)


def test_clip_cov_leaves_tokens_of_its_band_alone():
    rows = made()
    hand = by_hand(rows)
    found = covariances(hand)
    low, high = np.quantile(found, 0.5), np.quantile(found, 0.9)
    band = (found > low) & (found < high)
    everything = CovarianceConfig(**CLIP, share=1.0, low=float(low), high=float(high))

    def equation(rows, now):
        credit = zip(rows, now, relative(rows, "group"), split(~band, rows), strict=True)
        return -mean_of(rows, [surrogate(np.exp(x - r["old"]), A) * k for r, x, A, k in credit], "token")

    check(Covariance(everything, **BOTH), equation)
    mask, plain = rows["loss_mask"], GRPO(GRPOConfig(), **BOTH).annotate(rows, SingleProcess())["advantage"]
    shares = []
    for seed in range(200):
        some = Covariance(CovarianceConfig(share=0.1, low=float(low), high=float(high)), **BOTH, seed=seed)
        batch = some.annotate(rows, SingleProcess())
        changed = (batch["advantage"] != plain)[mask].numpy()
        assert not changed[~band].any()
        shares.append(float(batch["stats/covariance/chosen"] * mask.sum()))
    # the mean of 200 draws lies within three deviations of what is wanted
    wanted = int(0.1 * mask.sum())
    assert abs(np.mean(shares) - wanted) < 3 * np.sqrt(wanted / 200)


@pytest.mark.parametrize("num", [1, 3, 10, 11])
def test_the_highest_entries_of_all_ranks(num):
    x = torch.tensor(np.random.default_rng(0).normal(size=10))
    wanted = np.sort(x.numpy())[-min(num, 10)]
    chosen = x >= highest(x, num, SingleProcess())
    assert chosen.sum() == min(num, 10)
    assert x[chosen].min() == wanted
