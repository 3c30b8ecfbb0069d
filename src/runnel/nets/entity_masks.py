"""The names of leaves that say which entities of a set are there: to a policy, and to a critic (`nets/entities.py`)."""

from __future__ import annotations

from collections.abc import Mapping

from runnel.core.spaces import ArraySpec

MASK = "_mask"
"""How the name of the leaf ends that says which entities of a set are there."""
EXISTS = "_exists"
"""The same for critics alone: which entities there are, whether they are seen or not."""


def critic_masks(obs: Mapping[str, ArraySpec]) -> dict[str, str]:
    """The sets of entities of which a critic knows more than a policy, each with the leaf that says it.

    >>> leaves = {"obs/others": ArraySpec((5, 3)), "obs/others_mask": ArraySpec((5,)), "obs/others_exists": ArraySpec((5,))}
    >>> critic_masks(leaves)
    {'obs/others': 'obs/others_exists'}
    """
    sets = {key.removesuffix(EXISTS): key for key in obs if key.endswith(EXISTS)}
    return {key: own for key, own in sets.items() if key in obs and obs[own].shape == obs[key].shape[:1] and key + MASK in obs}
