"""Properties of a parameter channel (the contract is `Channel` in flow/params.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from runnel.core.contracts.params import ParamSet
from runnel.core.errors import DataError
from runnel.core.weight_check import WeightCheck, pack
from runnel.flow.params import Channel, ChannelSubscriber
from runnel.testing.expect import equal, raises, same_arrays, true


@dataclass
class ParamEnds:
    """Both ends of a channel, and a way to flip one byte of a version where the transport keeps it."""

    publisher: Channel
    subscriber: ChannelSubscriber
    damage: Callable[[int], None]


MakeParams = Callable[[int], ParamEnds]


def params_of(version: int) -> dict[str, Tensor]:
    """Parameters of several types and shapes, with values made from the version."""
    return {
        "net.weight": torch.full((3, 5), float(version)),
        "net.bias": torch.full((5,), version + 0.5, dtype=torch.bfloat16),
        "count": torch.tensor(version, dtype=torch.int64),
        "mask": torch.tensor([True, False, version % 2 == 0]),
        "empty": torch.zeros(0, 4),
        "mean": torch.full((2,), version + 0.25, dtype=torch.float64),
    }


def _got(found: ParamSet | None, version: int, what: str) -> ParamSet:
    if found is None:
        raise AssertionError(f"{what}: version {version} did not arrive")
    equal(found.version, version, what)
    same_arrays(found.params, params_of(version), what)
    return found


def the_newest_version_arrives_once(make: MakeParams) -> None:
    """A subscriber gets nothing before the first publication, then the newest version, each once."""
    ends = make(3)
    equal((ends.subscriber.poll(), ends.subscriber.newest()), (None, -1), "before any publication")
    for version in range(5):
        ends.publisher.publish(version, params_of(version))
        equal(ends.subscriber.newest(), version, "newest version")
        _got(ends.subscriber.poll(), version, "the newest version")
        equal(ends.subscriber.poll(), None, "a version that was seen already")
    for version in (5, 6):
        ends.publisher.publish(version, params_of(version))
    _got(ends.subscriber.poll(), 6, "the newest of two")
    equal(ends.subscriber.num_refused, 0, "refused versions")


def an_older_version_stays_within_depth(make: MakeParams) -> None:
    """The last `depth` versions can be read by number, whether they were read before or not."""
    ends = make(3)
    for version in range(5):
        ends.publisher.publish(version, params_of(version))
    for version in (2, 4, 3, 2):
        _got(ends.subscriber.poll(version), version, "a version by number")
    equal([ends.subscriber.available(v) for v in range(6)], [False, False, True, True, True, False], "versions kept")
    equal((ends.subscriber.poll(1), ends.subscriber.poll(5)), (None, None), "versions that are not there")
    equal(ends.subscriber.num_refused, 0, "a version that is not there is not a refused one")


def publishing_again_replaces_only_that_version(make: MakeParams) -> None:
    """The newest version may be published again (a warm start); older ones stay."""
    ends = make(2)
    ends.publisher.publish(0, params_of(0))
    ends.publisher.publish(1, params_of(7))
    ends.publisher.publish(1, params_of(1))
    _got(ends.subscriber.poll(1), 1, "the version that was published again")
    _got(ends.subscriber.poll(0), 0, "the version before it")


def out_of_order_publication_is_refused(make: MakeParams) -> None:
    """Publishing an older version is an error that names both versions."""
    ends = make(3)
    ends.publisher.publish(4, params_of(4))
    text = raises(DataError, lambda: ends.publisher.publish(3, params_of(3)), "version 3 after version 4")
    true("3" in text and "4" in text, f"the error does not name both versions: {text}")
    _got(ends.subscriber.poll(), 4, "what was published before")


def a_damaged_version_is_refused_and_counted(make: MakeParams) -> None:
    """The receiver finds a flipped byte; other versions stay readable."""
    ends = make(3)
    for version in range(3):
        ends.publisher.publish(version, params_of(version))
    ends.damage(2)
    equal(ends.subscriber.poll(), None, "a damaged version")
    equal(ends.subscriber.num_refused, 1, "refused versions")
    _got(ends.subscriber.poll(1), 1, "the version before the damaged one")
    ends.publisher.publish(3, params_of(3))
    _got(ends.subscriber.poll(), 3, "the version after the damaged one")


def copies_do_not_change_with_the_learner(make: MakeParams) -> None:
    """An optimiser that writes in place never changes a version that was published."""
    ends, own = make(2), params_of(0)
    ends.publisher.publish(0, own)
    found = _got(ends.subscriber.poll(), 0, "version 0")
    for x in own.values():
        x.copy_(torch.ones_like(x))
    true(not found.shared, "a channel that copies must not say that it shares")
    same_arrays(found.params, params_of(0), "version 0 after the learner's tensors have changed")
    _got(ends.subscriber.poll(0), 0, "version 0, asked for again")
    for version in (1, 2, 3):
        ends.publisher.publish(version, params_of(version))
    same_arrays(found.params, params_of(0), "version 0 after its buffer was used again")


def older_versions_come_back_from_a_snapshot(make: MakeParams) -> None:
    """A restored channel has the older versions, which actors may still load. The trainer publishes the newest again."""
    ends = make(3)
    for version in range(5):
        ends.publisher.publish(version, params_of(version))
    state, twin = ends.publisher.snapshot(), make(3)
    twin.publisher.restore(state)
    twin.publisher.publish(4, params_of(4))
    for version in (2, 3, 4):
        _got(twin.subscriber.poll(version), version, "a restored version")


def a_weight_check_travels_with_its_version(make: MakeParams) -> None:
    """A weight_check arrives apart from the parameters, is empty before there is one, and stays with its version."""
    ends = make(3)
    made = (WeightCheck(torch.arange(v), torch.arange(2 * v), torch.full((2 * v,), -0.5 * v), 0.1 * v) for v in (1, 2))
    given = [None, *made]
    for version, weight_check in enumerate(given):
        ends.publisher.publish(version, {**params_of(version), **pack(weight_check)})
    for version in (2, 0, 1):
        found = _got(ends.subscriber.poll(version), version, "a version with a weight check").weight_check
        wanted = given[version]
        equal(found is None, wanted is None, "whether there is a weight check")
        if found is not None and wanted is not None:
            for name in ("prompt", "tokens", "logprobs"):
                same_arrays({name: getattr(found, name)}, {name: getattr(wanted, name)}, "the weight check")
            equal(found.bound, wanted.bound, "the bound of the weight check")
    ends.publisher.publish(3, {**params_of(3), **pack(None)})
    without = _got(ends.subscriber.poll(), 3, "a version without one")
    true(without.weight_check is None, "an old weight check came with a new version")


PARAMS: dict[str, Callable[[MakeParams], None]] = {
    f.__name__: f
    for f in (
        the_newest_version_arrives_once,
        an_older_version_stays_within_depth,
        publishing_again_replaces_only_that_version,
        out_of_order_publication_is_refused,
        a_damaged_version_is_refused_and_counted,
        copies_do_not_change_with_the_learner,
        older_versions_come_back_from_a_snapshot,
        a_weight_check_travels_with_its_version,
    )
}
