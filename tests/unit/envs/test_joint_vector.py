"""A team as one agent: beside a plain loop over the same environments, in processes, and from a checkpoint in mid-episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
import torch
from team_envs import Crew, Leaver, StatelessCrew, Turns

from runnel.core.contracts.evaluation import AgentRoute, SampleRoute
from runnel.core.errors import ConfigError, DataError
from runnel.core.routes import sides_of, team_routes
from runnel.core.trajectories import TEAM_ACTIVE, own_reward
from runnel.envs.device import Spread, TeamView, TensorTeam
from runnel.envs.spaces import MASK
from runnel.envs.team.global_state import SEEN, STATE, with_global_state
from runnel.envs.team.joint import JointVector, TeamReward, joint_action
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.team.processes import ProcessTeam
from runnel.envs.team.serial import SerialTeam
from runnel.envs.vector import VectorEnv, episode_seed

Shown = dict[str, Any]
NUM, SEED = 3, 5


def joint(make: Callable[[], Any] = Crew, *, processes: bool = False, seed: int = SEED, **options: Any) -> JointVector:
    probe = ParallelEnv(make(), "probe")
    ((policy, side),) = sides_of([AgentRoute(".*", "team", (SampleRoute("team"),))], probe.spec()).items()
    given: dict[str, Any] = {"sides": {policy: with_global_state(side, probe)}, "seed": seed, "name": "crew", "index0": 7}
    team = ProcessTeam(make, NUM, num_workers=2, **given) if processes else SerialTeam(make, NUM, **given)
    return JointVector(team, **options)


def shown(vector: JointVector) -> Shown:
    """All that a step shows, copied."""
    out = vector.out
    n = len(out.final_rows or [])
    leaves = {**out.obs, **out.channels, "reward": out.reward, "terminated": out.terminated, "truncated": out.truncated}
    leaves |= {MASK: out.action_mask} if out.action_mask is not None else {}
    leaves |= {f"final_{key}": x[:n] for key, x in out.final_obs.items()}
    return {key: x.numpy().copy() for key, x in leaves.items()} | {"final_rows": list(out.final_rows or [])}


def actions_of(num_steps: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(0, 3, (num_steps, NUM, 3)))


class Loop:
    """The same, one environment and one agent at a time, with nothing of ours but the seeds of episodes."""

    def __init__(self, make: Callable[[], Any], reward: TeamReward) -> None:
        self.envs, self.episode, self.reward = [make() for _ in range(NUM)], [0] * NUM, reward
        self.rows = [self._show(i, *env.reset(seed=episode_seed(SEED, 7 + i, 0))) for i, env in enumerate(self.envs)]

    def _show(self, i: int, obs: Any, infos: Any, agents: Any = None) -> Shown:
        """What is shown of environment i where `agents` (those that go on) see `obs`."""
        env = self.envs[i]
        live = env.agents if agents is None else agents
        row: Shown = {"obs": np.zeros((3, 3)), MASK: np.ones((3, 3), bool), TEAM_ACTIVE: np.zeros(3, bool)}
        for a, agent in enumerate(env.possible_agents):
            if agent in live:
                row["obs"][a], row[MASK][a], row[TEAM_ACTIVE][a] = obs[agent], infos[agent]["action_mask"], True
        row[STATE] = env.state() if env.state_space is not None else None
        # behind the last step, those that took it are still there
        there = env.agents if agents is None else list(obs)
        seen = [np.where(agent in there, obs.get(agent, np.zeros(3)), 0.0) for agent in env.possible_agents]
        row[SEEN] = np.concatenate([*seen, [agent in there for agent in env.possible_agents]])
        return row

    def step(self, actions: torch.Tensor) -> tuple[list[Shown], list[Shown]]:
        """What is shown after a step, and what was shown last of environments that ended."""
        finals = []
        for i, env in enumerate(self.envs):
            chosen = {agent: int(actions[i, a]) for a, agent in enumerate(env.possible_agents) if agent in env.agents}
            obs, rewards, _, truncated, infos = env.step(chosen)
            paid = np.array([rewards.get(agent, 0.0) for agent in env.possible_agents])
            got = {"mean": paid.sum() / 3, "sum": paid.sum(), "first": next(iter(rewards.values()))}[self.reward]
            cut = [agent for agent in obs if truncated[agent]]
            over = not env.agents
            flags = {"terminated": over and not cut, "truncated": over and bool(cut), "paid": paid, "reward": got}
            if over:
                finals.append(self._show(i, obs, infos, cut) | {"env": i})
                self.episode[i] += 1
                obs, infos = env.reset(seed=episode_seed(SEED, 7 + i, self.episode[i]))
            self.rows[i] = self._show(i, obs, infos) | flags
        return self.rows, finals


@pytest.mark.parametrize("make", [Crew, StatelessCrew], ids=["with a state", "without"])
@pytest.mark.parametrize("reward", get_args(TeamReward))
def test_it_shows_what_a_plain_loop_over_environments_and_agents_shows(reward: TeamReward, make: Callable[[], Any]) -> None:
    vector, loop = joint(make, team_reward=reward, own_rewards=reward == "sum"), Loop(make, reward)
    assert isinstance(vector, VectorEnv)
    vector.reset()
    key, ended, kinds = STATE if make is Crew else SEEN, 0, set()
    for actions in actions_of(60):
        vector.step(actions)
        found, (rows, finals) = shown(vector), loop.step(actions)
        for name in ("obs", TEAM_ACTIVE, "reward", "terminated", "truncated", key):
            np.testing.assert_allclose(found[name], np.stack([row[name] for row in rows]), rtol=1e-6, err_msg=name)
        np.testing.assert_array_equal(found[MASK].reshape(NUM, 3, 3), np.stack([row[MASK] for row in rows]))
        for a in range(3 if reward == "sum" else 0):
            np.testing.assert_array_equal(found[own_reward(a)], [row["paid"][a] for row in rows])
        assert found["final_rows"] == [final["env"] for final in finals]
        for f, final in enumerate(finals):
            for name in ("obs", TEAM_ACTIVE):
                np.testing.assert_allclose(found[f"final_{name}"][f], final[name], rtol=1e-6)
            np.testing.assert_array_equal(found[f"final_{MASK}"][f].reshape(3, 3), final[MASK])
            np.testing.assert_allclose(found[f"final_{key}"][f], final[key], rtol=1e-6)
            kinds.add((bool(found["terminated"][final["env"]]), int(final[TEAM_ACTIVE].sum())))
        ended += len(finals)
    assert ended == len(vector.episodes()) >= 20
    assert {(True, 0), (False, 1)} <= kinds, "some episodes end terminated, others with one agent that is truncated"


def test_a_team_in_processes_and_one_from_a_checkpoint_go_on_the_same() -> None:
    """The checkpoint is taken while some agents have left and others play on."""
    first, other, actions = joint(), joint(processes=True), actions_of(40)
    try:
        for vector in (first, other):
            vector.reset()
        for step in actions[:13]:
            first.step(step)
            other.step(step)
        there = first.out.obs[TEAM_ACTIVE]
        assert bool((there.any(-1) & ~there.all(-1)).any())
        late = joint(seed=99)
        late.restore(first.snapshot())
        assert {k: x.tolist() for k, x in late.out.obs.items()} == {k: x.tolist() for k, x in first.out.obs.items()}
        for step in actions[13:]:
            said = []
            for vector in (first, other, late):
                vector.step(step)
                said.append(shown(vector))
            for twin in said[1:]:
                assert {k: np.asarray(x).tolist() for k, x in twin.items()} == {
                    k: np.asarray(x).tolist() for k, x in said[0].items()
                }
        episodes = [[(e.env, e.total, e.length) for e in vector.episodes()] for vector in (first, other, late)]
        assert episodes[0] == episodes[1] == episodes[2]
    finally:
        other.close()


class Breaking(Crew):
    """A crew that breaks in its third step, in half of its episodes."""

    def step(self, actions: Any) -> Any:
        if self._draw < 0.5 and self._t == 2:
            raise RuntimeError("lost at sea")
        return super().step(actions)


def test_an_environment_that_breaks_is_truncated_at_what_its_agents_saw_last() -> None:
    probe = ParallelEnv(Breaking(), "probe")
    sides = sides_of([AgentRoute(".*", "team", (SampleRoute("team"),))], probe.spec())
    vector = JointVector(SerialTeam(Breaking, 1, sides=sides, seed=2, name="crew", restart=True))
    vector.reset()
    faults = 0
    for actions in actions_of(90):
        before = shown(vector)
        vector.step(actions[:1])
        if found := vector.faults():
            faults += len(found)
            now = shown(vector)
            assert (now["final_rows"], now["truncated"].tolist(), now["reward"].tolist()) == ([0], [True], [0.0])
            np.testing.assert_array_equal(now[f"final_{TEAM_ACTIVE}"][0], before[TEAM_ACTIVE][0])
            np.testing.assert_array_equal(now["final_obs"][0], before["obs"][0])
    assert faults >= 2


def test_agents_that_wait_are_nobody_now_and_are_refused_where_each_learns_by_itself() -> None:
    probe = ParallelEnv(Turns(), "probe")
    sides = sides_of([AgentRoute(".*", "team", (SampleRoute("team"),))], probe.spec())
    vector = JointVector(SerialTeam(Turns, 2, sides=sides, seed=2, name="turns"))
    vector.reset()
    assert vector.out.obs[TEAM_ACTIVE].tolist() == [[True, False]] * 2
    vector.step(torch.zeros(2, 2, dtype=torch.int64))
    assert vector.out.obs[TEAM_ACTIVE].tolist() == [[False, True]] * 2
    assert vector.out.reward.tolist() == [0.25, 0.25]
    alone = JointVector(SerialTeam(Turns, 2, sides=sides, seed=2, name="turns"), own_rewards=True)
    alone.reset()
    with pytest.raises(DataError, match=r"agent 'x' waits; what it earns meanwhile would be lost to it; use a mixer"):
        alone.step(torch.zeros(2, 2, dtype=torch.int64))


def test_several_policies_and_actions_of_several_parts_are_refused() -> None:
    sides = sides_of(team_routes(("early_.*=early", "late_.*=late")), ParallelEnv(Leaver(), "probe").spec())
    with pytest.raises(ConfigError, match="a team as one agent has one policy for all agents"):
        JointVector(SerialTeam(Leaver, 1, sides=sides, seed=1, name="two"))
    one = joint_action(joint().spec.action.parts[0], 2)
    with pytest.raises(ConfigError, match="each needs one choice or one box"):
        joint_action(one, 2)


def test_worlds_of_tensors_end_together_and_are_shown_as_their_team_shows_them() -> None:
    """Beside a twin of the same seed, whose rows are put side by side here."""
    world = Spread(max_cycles=5)
    probe = ParallelEnv(TeamView(world), "probe")
    ((policy, side),) = sides_of([AgentRoute(".*", "team", (SampleRoute("team"),))], probe.spec()).items()
    sides = {policy: with_global_state(side, probe)}
    vector, twin = JointVector(TensorTeam(world, 4, sides=sides, seed=3)), TensorTeam(world, 4, sides=sides, seed=3)
    vector.reset()
    rng, out = np.random.default_rng(0), twin.outs[policy]
    for step in range(1, 12):
        actions = torch.from_numpy(rng.integers(0, 5, (4, 3)))
        vector.step(actions)
        twin.send({policy: actions.flatten()})
        found = shown(vector)
        np.testing.assert_array_equal(found["obs"], out.obs["obs"].view(4, 3, -1))
        np.testing.assert_array_equal(found[STATE], out.obs[STATE].view(4, 3, -1)[:, 0])
        np.testing.assert_allclose(found["reward"], out.reward.view(4, 3).mean(1), rtol=1e-6)
        over = step % 5 == 0
        assert (found["final_rows"], found["truncated"].tolist()) == ([0, 1, 2, 3] if over else [], [over] * 4)
        if over:
            np.testing.assert_array_equal(found["final_obs"], out.final_obs["obs"].view(4, 3, -1))
            assert found[f"final_{TEAM_ACTIVE}"].all()
