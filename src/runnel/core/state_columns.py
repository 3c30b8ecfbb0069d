"""Start states as columns of an episode: their bytes one after another, where each ends, and before which step it was."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from runnel.core.state import Array

STATE_STEP, STATE_END, STATE_BYTES = "state/step", "state/end", "state/bytes"


def state_columns(states: Mapping[int, bytes]) -> dict[str, Array]:
    """The states of an episode, by the step that each was saved before, as columns of it.

    >>> {name: x.tolist() for name, x in state_columns({0: b"ab", 10: b"c"}).items()}
    {'state/step': [0, 10], 'state/end': [2, 3], 'state/bytes': [97, 98, 99]}
    """
    ordered = dict(sorted(states.items()))
    return {
        STATE_STEP: np.array(list(ordered), np.int64),
        STATE_END: np.cumsum([len(x) for x in ordered.values()], dtype=np.int64),
        STATE_BYTES: np.frombuffer(b"".join(ordered.values()), np.uint8),
    }
