"""`set` of the token learner, for every algorithm: its next update is that of a learner which had the setting before."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from made_tokens import VOCAB, group, pairs

from runnel.core.contracts.learning import HasLiveSettings
from runnel.core.errors import ConfigError
from runnel.core.live_settings import live_fields
from runnel.llm.algorithms.a_lol import ALoL, ALoLConfig
from runnel.llm.algorithms.aipo import AIPO, AIPOConfig
from runnel.llm.algorithms.base import ClipConfig
from runnel.llm.algorithms.cispo import CISPO, CISPOConfig
from runnel.llm.algorithms.covariance import Covariance, CovarianceConfig
from runnel.llm.algorithms.dapo import DAPO, DAPOConfig
from runnel.llm.algorithms.decoupled import DecoupledConfig, DecoupledPPO
from runnel.llm.algorithms.dpo import DPO, DPOConfig
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.algorithms.opmd import OPMD, OPMDConfig
from runnel.llm.algorithms.oreal import OREAL, OREALConfig
from runnel.llm.algorithms.p3o import P3O, P3OConfig
from runnel.llm.algorithms.pacs import PACS, PACSConfig
from runnel.llm.algorithms.ppo import TokenPPO, TokenPPOConfig
from runnel.llm.algorithms.ppo_max import PPOMax, PPOMaxConfig
from runnel.llm.algorithms.raft import RAFT, RAFTConfig
from runnel.llm.algorithms.reinforce import Reinforce, ReinforceConfig
from runnel.llm.algorithms.reinforce_plus_plus import ReinforcePlusPlus, ReinforcePPConfig
from runnel.llm.algorithms.rl_plus import RLPlus, RLPlusConfig
from runnel.llm.algorithms.sft import SupervisedFineTuning
from runnel.llm.algorithms.topr import TOPR, TOPRConfig
from runnel.llm.learning.learner import TokenLearner, TokenLearnerConfig
from runnel.llm.model.causal_lm import ModelConfig, build_model

SIZES = ModelConfig(layers=1, width=16, heads=2, kv_heads=1, inner=32, max_positions=64)
BOTH: dict[str, Any] = {"channels": {"exact": 1.0, "style": 0.5}, "max_tokens": 6}
KL: dict[str, Any] = {"kl_coef": 0.1}
CASES: dict[str, tuple[Any, Any]] = {
    "grpo": (GRPO, GRPOConfig(**KL)),
    "grpo, entropy held": (GRPO, GRPOConfig(**KL, entropy_target=100.0, entropy_step=1e-2, max_entropy_coef=0.1)),
    "dapo": (DAPO, DAPOConfig(**KL, overlong_buffer=4)),
    "decoupled": (DecoupledPPO, DecoupledConfig(**KL)),
    "aipo": (AIPO, AIPOConfig(**KL)),
    "reinforce": (Reinforce, ReinforceConfig(**KL)),
    "ppo": (TokenPPO, TokenPPOConfig(**KL, value_clip=None)),
    "dpo": (DPO, DPOConfig()),
    "reinforce_plus_plus": (ReinforcePlusPlus, ReinforcePPConfig(max_advantage=2.0, max_log_ratio=1.0)),
    "cispo": (CISPO, CISPOConfig(**KL, min_ratio=0.1)),
    "topr": (TOPR, TOPRConfig(**KL)),
    "opmd": (OPMD, OPMDConfig(**KL, length_coef=0.1)),
    "p3o": (P3O, P3OConfig(**KL)),
    "pacs": (PACS, PACSConfig(**KL)),
    "oreal": (OREAL, OREALConfig(**KL)),
    "a_lol": (ALoL, ALoLConfig(**KL)),
    "raft": (RAFT, RAFTConfig(**KL, keep="passing")),
    "clip_cov": (Covariance, CovarianceConfig(**KL, share=1.0, low=-0.1, high=0.1)),
    "kl_cov": (Covariance, CovarianceConfig(**KL, how="kl", share=0.1)),
    "rl_plus": (RLPlus, RLPlusConfig()),
    "ppo_max": (PPOMax, PPOMaxConfig(reward_clip=1.0, advantage_clip=1.0, value_clip=None)),
}
OWN = {"lr": 1e-3, "max_grad_norm": 1e-3, "critic_lr": 1e-3}
VALUES = {
    "clip_low": 1e-6,
    "clip_high": 1e-6,
    "value_clip": 1e-6,
    "behaviour_high": 1.0001,
    "behaviour_low": 0.9999,
    "max_ratio": 1.0,
    "min_ratio": 1.0,
    "dual_clip": 1.0001,
    "max_log_ratio": 1e-6,
    "tau": 10.0,
    "share": 0.01,
    "pass_reward": -1.0,
    "baseline": -1.0,
    "clip": 1e-6,
    "entropy_target": 1e-6,
    "max_entropy_coef": 1e-3,
}
OF_ENTROPY = ("entropy_target", "entropy_step", "max_entropy_coef")
SHARED = live_fields(ClipConfig)
NEWER = (
    *("reinforce_plus_plus", "cispo", "topr", "opmd", "p3o", "pacs", "oreal", "a_lol", "raft"),
    *("clip_cov", "kl_cov", "rl_plus", "ppo_max"),
)
"""Of these, what is their own is changed; the rest is of classes that others have, too."""
MOVED = [
    (name, field)
    for name, (_, config) in CASES.items()
    for field in live_fields(type(config))
    if name not in NEWER
    or not (field in {*SHARED, "dual_clip", "value_clip", "gamma", "gae_lambda"} or field in config.unused())
]
MOVED = [case for case in MOVED if (case[0] == "grpo, entropy held") == (case[1] in OF_ENTROPY)]
MOVED += [("grpo", "lr"), ("grpo", "max_grad_norm"), ("ppo", "critic_lr")]


def learner_of(name: str, config: Any, **changes: Any) -> TokenLearner:
    kind, _ = CASES[name]
    more = {"vocab_size": VOCAB} if kind is RLPlus else {}
    algorithm = kind(config) if kind is DPO else kind(config, **BOTH, **more)
    own = dataclasses.replace(TokenLearnerConfig(lr=1e-2, max_mismatch=1e9, warmup_updates=1, num_epochs=3), **changes)
    return TokenLearner(own, build_model(SIZES, VOCAB, seed=0), algorithms={"pairs" if kind is DPO else "rollouts": algorithm})


def trained(learner: TokenLearner, name: str, first: int, last: int) -> list[dict[str, float]]:
    found = []
    for seed in range(first, last):
        rng = np.random.default_rng(seed)
        first = {"demo_first": name == "rl_plus"}
        groups = [group(rng, rewards, **first) for rewards in ([1.0, 0.0, 0.3], [0.0, 1.0])]
        made = {"pairs": [pairs(rng, 3)]} if name == "dpo" else {"rollouts": groups}
        found.append(learner.update(learner.prepare(made, progress=0.0)).metrics)
    return found


def weights(learner: TokenLearner) -> list[torch.Tensor]:
    critic = [] if learner.critic is None else list(learner.critic.params().values())
    return [x.clone() for x in (*learner.params().values(), *critic)]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("name", "field"), MOVED)
def test_the_next_update_is_that_of_a_learner_made_with_it(name: str, field: str) -> None:
    torch.set_num_threads(1)
    config, own = CASES[name][1], {field: OWN[field]} if field in OWN else {}
    value = OWN[field] if own else VALUES.get(field, (getattr(config, field) or 0.5) * 0.5)
    changed, plain = learner_of(name, config), learner_of(name, config)
    assert isinstance(changed, HasLiveSettings)
    trained(changed, name, 0, 2)
    made = learner_of(name, config if own else dataclasses.replace(config, **{field: value}), **own)
    for learner in (made, plain):
        learner.load_state_dict(changed.state_dict())
    changed.set(field, value)
    metrics = trained(changed, name, 2, 4)
    assert trained(made, name, 2, 4) == metrics
    assert same(weights(changed), weights(made))
    trained(plain, name, 2, 4)
    assert not same(weights(changed), weights(plain)), f"{field} has no effect"


def test_only_what_it_reads_is_live() -> None:
    learner = learner_of("grpo", GRPOConfig(kl_coef=0.1))
    assert list(learner.takes) == [TokenLearnerConfig, GRPOConfig]
    assert list(learner.takes[TokenLearnerConfig]) == ["lr", "max_grad_norm", "max_mismatch"]
    assert "critic_lr" in learner_of("ppo", TokenPPOConfig()).takes[TokenLearnerConfig]
    warm = {"rollouts": GRPO(GRPOConfig(), **BOTH), "demos": SupervisedFineTuning()}
    warming = TokenLearner(TokenLearnerConfig(), build_model(SIZES, VOCAB, seed=0), algorithms=warm)
    assert "sft_lr" in warming.takes[TokenLearnerConfig]
    for field, value, why in (
        ("critic_lr", 0.1, "may not change while a run goes on; live settings here: lr, max_grad_norm, max_mismatch, kl_coef"),
        ("temperature", 0.5, "may not change while a run goes on"),
        ("kl_coef", 0.0, "switching it on or off changes what the run is made of"),
        ("clip_low", 0.0, "must be above 0"),
    ):
        with pytest.raises(ConfigError, match=why):
            learner.set(field, value)
    assert (learner.config.lr, learner.algorithms["rollouts"].config) == (1e-2, GRPOConfig(kl_coef=0.1))
