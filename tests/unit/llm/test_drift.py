from __future__ import annotations

import pytest
import torch

from runnel.core.errors import RunnelError
from runnel.core.records import Batch
from runnel.llm.learning.drift import Mismatch, version_stats


def batch_of(*rows: list[int]) -> Batch:
    """Rows given by the version of each token; -1 in prompts."""
    versions = torch.tensor([v for row in rows for v in row])
    lengths = torch.tensor([len(row) for row in rows])
    rows = {"row_length": lengths, "row_owner": torch.arange(len(lengths))}
    return Batch(policy_version=versions, logprob=torch.zeros(len(versions)), **rows)


def test_a_tokens_age_is_what_went_by_in_flight_and_in_queue():
    """By hand, at version 7. Row 1: ages 4 3 3, in flight 1 0 0, in queue 3. Row 2: age 2, in flight 0, in queue 2."""
    found = version_stats(batch_of([-1, -1, 3, 4, 4], [-1, 5]), 7)
    assert found == {
        "version_span": 2.0,
        "staleness/mean": 3.0,
        "staleness/max": 4.0,
        "staleness/in_flight": 0.25,
        "staleness/in_flight_max": 1.0,
        "staleness/in_queue": 2.75,
        "staleness/in_queue_max": 3.0,
    }


def test_fresh_rows_have_no_age():
    found = version_stats(batch_of([-1, 6, 6], [-1, 6]), 6)
    assert found.pop("version_span") == 1.0
    assert set(found.values()) == {0.0}


def test_rows_that_no_policy_made_have_no_age():
    assert version_stats(batch_of([-1, -1, -1]), 6) == {}
    assert version_stats(Batch(row_length=torch.tensor([2]), policy_version=torch.tensor([0, 0])), 6) == {}
    mixed = version_stats(batch_of([-1, -1, -1], [-1, 4]), 6)
    assert (mixed["version_span"], mixed["staleness/mean"], mixed["staleness/in_queue"]) == (1.0, 2.0, 2.0)


def totals(kl: float, num: float) -> dict[str, float]:
    return {"mismatch/kl": kl * num, "mismatch/num": num, "mismatch/abs": 0.0}


def test_one_noisy_batch_does_not_stop_a_run_but_a_lasting_or_a_large_mismatch_does():
    worst = torch.tensor(0.5)
    watch = Mismatch()
    for kl in (3e-4, 4e-4, 2e-4, 1.5e-3, 3e-4):
        assert watch.check(totals(kl, 100.0), worst, 3, 1e-3)["mismatch/kl"] == pytest.approx(kl)
    with pytest.raises(RunnelError, match=r"0\.0101 .*over the last 6 updates.* is above learner.max_mismatch = 0\.001"):
        watch.check(totals(1.01e-2, 100.0), worst, 4, 1e-3)
    lasting = Mismatch()
    lasting.check(totals(9e-4, 100.0), worst, 1, 1e-3)
    with pytest.raises(RunnelError, match="over the last 2 updates"):
        lasting.check(totals(1.2e-3, 100.0), worst, 2, 1e-3)
    with pytest.raises(RunnelError, match="at version 0"):
        Mismatch().check(totals(1.1e-3, 5.0), worst, 0, 1e-3)
