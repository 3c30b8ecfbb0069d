"""Worlds of VMAS, all at once: the numbers of bare VMAS led by hand, ends, and a resume in the middle of many episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import runnel as rl
from runnel.core.errors import DataError
from runnel.core.rng import make_seed
from runnel.core.routes import sides_of, team_routes
from runnel.core.spaces import TeamSpec
from runnel.core.trajectories import AGENT, CLOCK
from runnel.envs.registry import make_team_env
from runnel.envs.team.global_state import SEEN, with_global_state
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.team.vmas import VmasTeam
from runnel.graphs.team_config import TeamConfig
from runnel.graphs.team_task import TeamTask

DROPS = {"max_steps": 40}
"""Of `balance`: random players drop the package after 30 to 40 steps, so worlds end one by one, and some at once."""
WORDS = {"max_steps": 6, "continuous_actions": False}
"""Of `simple_reference`: a move and a word make one choice."""


def spec_of(name: str, options: dict[str, Any]) -> tuple[TeamSpec, ParallelEnv]:
    probe = ParallelEnv(make_team_env(f"vmas:{name}", kwargs=options), name)
    return probe.spec(), probe


def team(name: str, options: dict[str, Any], *teams: str, num_envs: int = 8, seed: int = 5, shared: bool = False) -> VmasTeam:
    spec, probe = spec_of(name, options)
    sides = sides_of(team_routes(teams), spec)
    if shared:
        sides = {policy: with_global_state(side, probe, clock=True) for policy, side in sides.items()}
    return VmasTeam(f"vmas:{name}", num_envs, sides=sides, seed=seed, index0=4, options=options)


def random_actions(vector: VmasTeam, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    found = {}
    for policy, side in vector.sides.items():
        rows, action = len(vector.outs[policy].reward), side.spec.action
        drawn = (
            rng.integers(0, action.num_actions, rows)
            if action.kind == "discrete"
            else rng.uniform(-1.3, 1.3, (rows, *action.shape))
        )
        found[policy] = torch.from_numpy(drawn if action.kind == "discrete" else drawn.astype(np.float32))
    return found


@pytest.mark.parametrize(
    ("name", "options", "teams"),
    [
        ("balance", DROPS, ("agent_[02]=a", "agent_1=b")),
        ("simple_speaker_listener", {"max_steps": 5}, ("speaker_0=s", "listener_0=l")),
        ("simple_reference", WORDS, (".*=all",)),
    ],
)
def test_a_vector_gives_what_bare_vmas_gives(name: str, options: dict[str, Any], teams: tuple[str, ...]) -> None:
    """Bare VMAS gets the same seed and the same calls: step, then reset_at of each world that ended, or reset where all did.
    In `balance` worlds end one by one, as the package drops."""
    import vmas

    vector, rng = team(name, options, *teams), np.random.default_rng(1)
    vector.reset()
    alone = vmas.make_env(name, num_envs=8, terminated_truncated=True, **options)
    obs, names = alone.reset(seed=make_seed(5, "vmas", 4)), [agent.name for agent in alone.agents]
    lengths, ended = np.zeros(8, int), []
    for _ in range(60):
        for policy, side in vector.sides.items():
            wanted = torch.stack([obs[names.index(agent)] for agent in side.agents], 1).flatten(0, 1)
            assert torch.equal(vector.outs[policy].obs["obs"], wanted)
            assert vector.outs[policy].active.all()  # type: ignore[union-attr]
        actions = random_actions(vector, rng)
        by_agent: dict[str, torch.Tensor] = {}
        for policy, side in vector.sides.items():
            rows = actions[policy].reshape(8, len(side.agents), -1)
            rows = rows.clamp(-1, 1) if rows.is_floating_point() else rows
            if "speaker_0" in side.agents:
                rows = rows.clamp(0, 1)  # words are from 0 to 1
            by_agent |= {agent: rows[:, i] for i, agent in enumerate(side.agents)}
        vector.send(actions)
        obs, rewards, terminated, truncated, _ = alone.step([by_agent[agent] for agent in names])
        lengths += 1
        over = torch.nonzero(terminated | truncated).flatten().tolist()
        for policy, side in vector.sides.items():
            out, width = vector.outs[policy], len(side.agents)
            assert torch.equal(out.reward, torch.stack([rewards[names.index(a)] for a in side.agents], 1).flatten())
            assert torch.equal(out.terminated.view(8, width), terminated[:, None].expand(8, width))
            assert torch.equal(out.truncated.view(8, width), (truncated & ~terminated)[:, None].expand(8, width))
            assert out.final_rows == [world * width + i for world in over for i in range(width)]
            last = [obs[names.index(agent)][world] for world in over for agent in side.agents]
            assert all(torch.equal(x, y) for x, y in zip(out.final_obs["obs"][: len(last)], last, strict=True))
        ended += [(world + 4, int(lengths[world])) for world in over]
        lengths[over] = 0
        if len(over) == 8:
            obs = alone.reset()
        elif over:
            for world in over:
                obs = alone.reset_at(world)
    episodes = vector.episodes()
    assert [(e.env, e.length) for e in episodes] == ended
    assert len(ended) >= 8
    assert name != "balance" or len({length for _, length in ended}) > 1


def test_the_returns_of_episodes_are_sums_and_worlds_draw_different_starts() -> None:
    vector, rng = team("navigation", {"n_agents": 2, "max_steps": 4}, "agent_0=a", "agent_1=b"), np.random.default_rng(0)
    vector.reset()
    assert len({tuple(row.tolist()) for row in vector.outs["a"].obs["obs"]}) == 8
    sums = {"a": torch.zeros(8), "b": torch.zeros(8)}
    for _ in range(4):
        vector.send(random_actions(vector, rng))
        sums = {policy: sums[policy] + vector.outs[policy].reward for policy in sums}
    for world, episode in enumerate(vector.episodes()):
        assert episode.by_policy == pytest.approx({policy: float(total[world]) for policy, total in sums.items()}, abs=1e-5)
        assert episode.total == pytest.approx(sum(episode.by_policy.values()) / 2)


@pytest.mark.parametrize("steps", [0, 45])
def test_a_vector_goes_on_bit_for_bit_with_worlds_at_different_ages(steps: int) -> None:
    """`balance` ends its worlds one by one; what all agents see is there, too. Another vector of this process, which draws
    meanwhile, changes nothing."""
    teams = ("agent_[02]=a", "agent_1=b")
    first, rng = team("balance", DROPS, *teams, shared=True), np.random.default_rng(2)
    other = team("navigation", {"n_agents": 2}, seed=8)
    first.reset()
    other.reset()
    for _ in range(steps):
        first.send(random_actions(first, rng))
        other.send(random_actions(other, rng))
    saved = first.snapshot()
    second = team("balance", DROPS, *teams, seed=99, shared=True)
    second.restore(saved)
    for _ in range(45):
        actions = random_actions(first, rng)
        first.send(actions)
        second.send(actions)
        for policy, out in first.outs.items():
            twin = second.outs[policy]
            assert all(torch.equal(x, twin.obs[key]) for key, x in out.obs.items())
            assert torch.equal(out.reward, twin.reward)
            assert out.final_rows == twin.final_rows
    third = team("balance", DROPS, *teams, seed=98, shared=True)
    third.restore(second.snapshot())
    episodes = second.episodes()
    assert first.episodes() == episodes == third.episodes()
    assert len({e.length for e in episodes}) > 1


def test_the_global_state_is_what_all_see_and_which_agent_a_row_is() -> None:
    vector, rng = team("balance", {"n_agents": 2, "max_steps": 3}, ".*=all", shared=True), np.random.default_rng(0)
    vector.reset()
    for step in range(4):
        out = vector.outs["all"]
        both = out.obs["obs"].view(8, 2, -1)
        wanted = torch.cat([both.flatten(1), torch.ones(8, 2)], 1).repeat_interleave(2, 0)
        assert torch.equal(out.obs[SEEN], wanted)
        assert torch.equal(out.obs[AGENT], torch.eye(2).repeat(8, 1))
        assert out.obs[CLOCK].tolist() == [step % 3] * 16
        if step == 3:
            assert out.final_obs[CLOCK].tolist() == [3] * 16
            last = out.final_obs["obs"].view(8, 2, -1).flatten(1)
            assert torch.equal(out.final_obs[SEEN][:, :-2], last.repeat_interleave(2, 0))
            assert torch.equal(out.final_obs[AGENT], torch.eye(2).repeat(8, 1))
        vector.send(random_actions(vector, rng))


def test_one_world_passes_the_contract_check_and_pettingzoo_s_own_tests() -> None:
    for name in ("simple_spread", "simple_reference"):
        report = rl.check_env(f"vmas:{name}", num_steps=32, max_steps=100)
        assert not report
        assert not report.warnings
        assert not report.hints


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(rl.ConfigError, match="VMAS has no scenario 'balanc'; it has balance"):
        make_team_env("vmas:balanc")
    with pytest.raises(rl.ConfigError, match="env_kwargs = 'num_envs': runnel sets it itself"):
        make_team_env("vmas:balance", kwargs={"num_envs": 3})
    for name, options, text in (
        ("balance", {"n_agent": 3}, "scenario 'balance' does not read all of them; VMAS says: .*n_agent"),
        ("simple_spread", {"bogus": 1, "n_agents": 2}, "VMAS says: .*bogus"),
        ("balance", {"max_steps": 0}, r"env_kwargs\.max_steps = 0: use at least one step"),
        ("balance", {"continuous_actions": "no"}, r"env_kwargs\.continuous_actions = 'no': use true or false"),
    ):
        with pytest.raises(rl.ConfigError, match=text):
            make_team_env(f"vmas:{name}", kwargs=options)
    with pytest.raises(rl.ConfigError, match=r"vector.on_error .* VMAS steps all its worlds at once"):
        rl.train("ippo", env="vmas:balance", vector={"on_error": "restart"})
    with pytest.raises(rl.ConfigError, match=r"vector.backend .* VMAS steps all its worlds at once"):
        rl.train("ippo", env="vmas:balance", vector={"backend": "processes"})
    assert isinstance(TeamTask(TeamConfig(env="vmas:balance")).vector(2, seed=1), VmasTeam)


def test_a_scenario_that_raises_and_one_that_cannot_be_repeated_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"n_agents": 2, "max_steps": 5}
    first, rng = team("balance", options), np.random.default_rng(0)
    first.reset()
    first.send(random_actions(first, rng))
    saved = first.snapshot()
    second = team("balance", options)
    scenario, rewards = second._worlds.scenario, second._worlds.scenario.observation
    monkeypatch.setattr(scenario, "observation", lambda agent: rewards(agent) + 1.0)
    with pytest.raises(DataError, match="shows policy 'shared' another 'obs' than the checkpoint"):
        second.restore(saved)
    monkeypatch.setattr(scenario, "observation", lambda agent: 1 // 0)
    with pytest.raises(DataError, match=r"8 worlds of 'vmas:balance' \(step 2\) raised ZeroDivisionError"):
        second.send(random_actions(second, rng))
