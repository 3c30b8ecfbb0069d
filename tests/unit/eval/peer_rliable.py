"""rliable, imported around what its dependency `arch` does at import and does not need for bootstraps."""

import importlib.util
import sys
import types

import pytest


def load():
    """`rliable.library` and `rliable.metrics`; `arch/__init__.py` loads models of time series, broken by a new pandas."""
    if "arch" not in sys.modules:
        spec = importlib.util.find_spec("arch")
        if spec is None:
            pytest.skip("rliable is not installed")
        bare = types.ModuleType("arch")
        bare.__path__ = list(spec.submodule_search_locations or [])
        sys.modules["arch"] = bare
    pytest.importorskip("rliable")
    from rliable import library, metrics

    return library, metrics
