"""That freed memory is kept: an array that is made again needs no new pages."""

import subprocess
import sys

import pytest

from runnel.kernels.host_memory import keep_freed_memory

FAULTS = """
import resource, sys, torch
from runnel.kernels.host_memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
torch.set_num_threads(1)
for _ in range(12):
    torch.ones(12_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(12_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS, how], check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the C library is another")
def test_an_array_that_is_made_again_needs_no_new_pages() -> None:
    """Ten arrays of 48 MB are some 117,000 pages of 4 KB, or 230 of 2 MB."""
    if not keep_freed_memory():
        pytest.skip("the C library is not glibc")
    assert faults("keep") < 50 < 200 <= faults("leave")
