"""Several networks as one: what acts for all policies of a team."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import overload

import numpy as np
import torch
from torch import Tensor

from runnel.core.action_codec import env_action
from runnel.core.errors import DataError
from runnel.core.records import Batch
from runnel.core.rng import make_rng
from runnel.core.spaces import ArraySpec, EnvSpec
from runnel.core.state import Plain
from runnel.core.trajectories import TEAM_ACTIVE
from runnel.nets.inferencer import AgentNet, to_act
from runnel.nets.policy import EnvPolicy


class TeamNet:
    """The networks of a team, by policy: rows, actions and parameters of policy `red` are named `red/...`, as those of a
    `TeamLearner` are. One request may have rows of some policies and none of others. `fixed` policies are not among
    those whose parameters are loaded: they stay as they are."""

    noise_size = 0

    def __init__(self, members: Mapping[str, AgentNet], *, fixed: Collection[str] = ()) -> None:
        self.members = dict(members)
        self.state_spec: Mapping[str, ArraySpec] = {
            f"{policy}/{key}": leaf for policy, net in members.items() for key, leaf in net.state_spec.items()
        }
        self._learned = {policy: net for policy, net in members.items() if policy not in fixed}

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        """Each policy acts for its rows."""
        found = Batch()
        for policy, mine in self._parts(rows):
            found |= {f"{policy}/{key}": x for key, x in self.members[policy].act(Batch(mine), greedy=greedy).items()}
        return found

    def _parts(self, values: Mapping[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """The part of each policy that has one, without its name."""
        for policy in self.members:
            start = f"{policy}/"
            if mine := {key.removeprefix(start): x for key, x in values.items() if key.startswith(start)}:
                yield policy, mine

    @property
    def training(self) -> bool:
        return any(getattr(net, "training", False) for net in self.members.values())

    def eval(self) -> None:
        """Put all of them into eval mode."""
        for net in self.members.values():
            if isinstance(net, torch.nn.Module):
                net.eval()

    def state_dict(self) -> dict[str, Tensor]:
        return {f"{policy}/{key}": x for policy, net in self._learned.items() for key, x in net.state_dict().items()}

    def load_state_dict(self, state_dict: Mapping[str, Tensor], *, assign: bool = False) -> None:
        for policy, mine in self._parts(state_dict):
            self.members[policy].load_state_dict(mine, assign=assign)

    def to(self, device: torch.device) -> None:
        for net in self.members.values():
            net.to(device)


class TeamPolicy:
    """The policies of a team, which act for its agents: a dict of observations by agent in, a dict of actions out; or one
    observation in and one action out, with the name of its agent.

    `policies` has the policy of each agent that there may be; `policy["scout"]` is that of one agent. Between calls each keeps
    its recurrent state, if it has one; an agent that waits is not asked, and keeps it, too.
    """

    def __init__(self, policies: Mapping[str, EnvPolicy]) -> None:
        self.policies = dict(policies)

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that it acts for."""
        return tuple(self.policies)

    def __getitem__(self, agent: str) -> EnvPolicy:
        """The policy of one agent, with the memory of that agent: it acts for one observation, or for a batch."""
        self._check([agent])
        return self.policies[agent]

    @overload
    def act(
        self,
        obs: Mapping[str, Plain],
        *,
        agent: None = None,
        deterministic: bool = True,
        action_mask: Mapping[str, Plain] | None = None,
    ) -> dict[str, Plain]: ...

    @overload
    def act(self, obs: Plain, *, agent: str, deterministic: bool = True, action_mask: Plain = None) -> Plain: ...

    def act(
        self, obs: Plain, *, agent: str | None = None, deterministic: bool = True, action_mask: Plain = None
    ) -> dict[str, Plain] | Plain:
        """An action for each agent that has an observation; masks that an environment gives in `infos` come beside them. With
        `agent`, `obs` and `action_mask` are those of that agent alone, and so is the action."""
        if agent is not None:
            return self[agent].act(obs, deterministic=deterministic, action_mask=action_mask)
        self._check(obs)
        masks = action_mask or {}
        return {
            name: self.policies[name].act(seen, deterministic=deterministic, action_mask=masks.get(name))
            for name, seen in obs.items()
        }

    def probabilities(
        self, obs: Mapping[str, Plain], *, action_mask: Mapping[str, Plain] | None = None
    ) -> dict[str, np.ndarray]:
        """How probable the actions of each agent are, where they are drawn (`EnvPolicy.probabilities`)."""
        self._check(obs)
        masks = action_mask or {}
        return {agent: self.policies[agent].probabilities(seen, action_mask=masks.get(agent)) for agent, seen in obs.items()}

    def _check(self, agents: Iterable[str]) -> None:
        """Refuse what is not by agent, and agents that nobody knows."""
        known = ", ".join(self.policies)
        if not isinstance(agents, Mapping | list):
            one = f"policy.act(obs, agent={self.agents[0]!r})"
            raise DataError(f"give a dict of observations by agent ({known}), or say whose observation it is: {one}")
        if unknown := [agent for agent in agents if agent not in self.policies]:
            raise DataError(f"this policy knows no agent {unknown[0]!r}; it was trained with {known}")

    def reset(self) -> None:
        """Forget the recurrent state of every agent: call it before each episode."""
        for policy in self.policies.values():
            policy.reset()


class JointPolicy:
    """A policy that chooses for a whole team at once: a dict of observations by agent in, a dict of actions out.

    Who is not in the dict does not decide. `flatten` turns what each agent sees into leaves, as for `EnvPolicy`.
    """

    def __init__(
        self,
        net: AgentNet,
        env_spec: EnvSpec,
        agent_spec: EnvSpec,
        *,
        flatten: Mapping[str, Callable[[Plain], Mapping[str, np.ndarray]]],
        seed: int = 0,
    ) -> None:
        self.net, self.env_spec, self.agent_spec = net, env_spec, agent_spec
        # these only read observations and check them
        self._readers = {agent: EnvPolicy(net, agent_spec, flatten=one) for agent, one in flatten.items()}
        self._rng, self._to_env = make_rng(seed, "policy"), env_action(agent_spec.action)

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that it acts for."""
        return tuple(self._readers)

    def act(
        self,
        obs: Mapping[str, Plain],
        *,
        deterministic: bool = True,
        action_mask: Mapping[str, Plain] | None = None,
    ) -> dict[str, Plain]:
        """An action for each agent that has an observation; masks that an environment gives in `infos` come beside them."""
        rows = self._rows(obs, action_mask or {})
        if not deterministic:
            rows["noise"] = torch.from_numpy(self._rng.random((1, self.net.noise_size), dtype=np.float32))
        to_act(self.net)
        with torch.inference_mode():
            action = self.net.act(rows, greedy=deterministic)["action"][0].numpy()
        chosen = {agent: self._to_env(action[i]) for i, agent in enumerate(self.agents) if agent in obs}
        # plain ints: environments index lists with them, and print them
        return {agent: int(x) if self.agent_spec.action.kind == "discrete" else x for agent, x in chosen.items()}

    def _rows(self, obs: Mapping[str, Plain], masks: Mapping[str, Plain]) -> Batch:
        """One row of a request: what all agents see side by side, zeros for those that do not decide."""
        known = ", ".join(self.agents)
        if not isinstance(obs, Mapping) or not obs:
            raise DataError(f"this policy acts for a whole team: give a dict of observations by agent ({known})")
        if unknown := [agent for agent in obs if agent not in self._readers]:
            raise DataError(f"this policy knows no agent {unknown[0]!r}; it was trained with {known}")
        num = len(self.agents)
        rows = Batch({k: torch.zeros(1, *leaf.shape, dtype=leaf.dtype) for k, leaf in self.env_spec.obs.items()})
        if self.agent_spec.has_mask:
            rows["action_mask"] = torch.ones(1, self.env_spec.action.mask_size, dtype=torch.bool)
        for i, (agent, reader) in enumerate(self._readers.items()):
            if agent not in obs:
                continue
            mine, batched = reader.asked(obs[agent], masks.get(agent))
            if batched:
                raise DataError(f"the observation of agent {agent!r} is a batch; this policy acts for one moment of one team")
            rows[TEAM_ACTIVE][0, i] = True
            if "action_mask" in mine:
                rows["action_mask"].view(num, -1)[i] = mine["action_mask"][0]
            for key in self.agent_spec.obs:
                rows[key][0, i] = mine[key][0]
        return rows

    def reset(self) -> None:
        """It remembers nothing: there is nothing to forget before an episode."""
