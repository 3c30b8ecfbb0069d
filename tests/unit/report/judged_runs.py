"""Two groups of runs with awkward names, and what a comparison says of them."""

from made_runs import made_group

from runnel.report.collect import collect
from runnel.report.verdicts import make_verdicts


def judged(root, **settings):
    made_group(root / "a_1", [1.0, 2.0, 3.0, 4.0], task="x_1 & 100%", **settings)
    made_group(root / "b", [5.0, 6.0, 7.0, 8.0], task="x_1 & 100%", **settings)
    return make_verdicts(collect([root / "a_1", root / "b"]))
