"""Many small policies of one shape at once: one batched product for each layer, in place of one network after the other."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from runnel.core.records import Batch
from runnel.nets.actor_critic import ActorCritic, SeparateBody
from runnel.nets.layers import ACTIVATIONS


class StackedActors:
    """The policies of `ActorCritic` networks whose parameters are rows of one memory, each `stacked[name]` `[K, *shape]`.

    `fits` says for which networks: perceptrons without images whose actor and critic share nothing, for choices.
    """

    def __init__(self, net: ActorCritic, stacked: Mapping[str, Tensor]) -> None:
        assert isinstance(net.body, SeparateBody)
        mlp, self._torso = net.body.nets, net.body.torso
        num = len(mlp.weight) - 2
        # layers hold actor and critic side by side; of both heads the first is the actor's
        self._layers = [(stacked[f"body.nets.weight.{i}"][:, 0], stacked[f"body.nets.bias.{i}"][:, 0]) for i in range(num)]
        head = stacked[f"body.nets.weight.{num}"], stacked[f"body.nets.bias.{num}"].unsqueeze(1)
        self._layers.append(head)
        self._net, self._activation = net, ACTIVATIONS[mlp.activation]
        self._statistics = {
            key: (stacked[f"normalisers.{key}.mean"], stacked[f"normalisers.{key}.var"]) for key in net.normalisers
        }
        self.num_members = len(head[0])

    @staticmethod
    def fits(net: ActorCritic) -> bool:
        """Whether networks of this form can be run as one."""
        body = net.body
        plain = type(net) is ActorCritic and type(body) is SeparateBody and not body.torso.convolves
        return plain and not net.head.num_log_std

    def act(self, rows: Batch, member: Tensor) -> Batch:
        """As `ActorCritic.act`, row b by network `member[b]`. `[B] int64`"""
        order = torch.argsort(member, stable=True)
        of = member[order]
        counts = torch.bincount(of, minlength=self.num_members)
        starts = counts.cumsum(0) - counts
        place = torch.arange(len(of), device=of.device) - starts[of]
        x = self._torso(self._seen(rows, member))[order]
        padded = x.new_zeros(self.num_members, int(counts.max()), x.shape[1])
        padded[of, place] = x
        padded = self._scores(padded)
        scores = torch.empty(len(of), padded.shape[2], device=x.device)
        scores[order] = padded[of, place]
        action, logprob = self._net.head.sample(scores, rows["noise"], rows.get("action_mask"), None)
        return Batch({"action": action, "logprob": logprob})

    def of_all(self, rows: Batch, member: Tensor) -> Batch:
        """`act`, in which every network scores every row: more work, and no shape that depends on `member`."""
        x = self._torso(self._seen(rows, member))
        scores = self._scores(x.expand(self.num_members, -1, -1))[member, torch.arange(len(member), device=member.device)]
        action, logprob = self._net.head.sample(scores, rows["noise"], rows.get("action_mask"), None)
        return Batch({"action": action, "logprob": logprob})

    def _scores(self, x: Tensor) -> Tensor:
        """`[K, N, I] -> [K, N, S]`, each network on its own rows."""
        for i, (weight, bias) in enumerate(self._layers):
            x = torch.baddbmm(bias, x if i == 0 else self._activation(x), weight)
        return x

    def _seen(self, rows: Batch, member: Tensor) -> Mapping[str, Tensor]:
        """What the networks see: normalised by their own statistics where that is on (`layers.RunningMeanStd`)."""
        found = {key: rows[key] for key in self._net.env_spec.obs}
        for key, (mean, var) in self._statistics.items():
            own = self._net.normalisers[key]
            scale = (var + own.epsilon).rsqrt().to(found[key].dtype)[member]
            found[key] = ((found[key] - mean.to(found[key].dtype)[member]) * scale).clamp(-own.clip, own.clip)
        return found
