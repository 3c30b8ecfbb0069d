"""Where the tests of reports put their runs."""

import pytest


@pytest.fixture
def tmp_path(tmp_path):
    """Deep enough that a study of another test does not lie beside it."""
    path = tmp_path / "project" / "runs"
    path.mkdir(parents=True)
    return path
