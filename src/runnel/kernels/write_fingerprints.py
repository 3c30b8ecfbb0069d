"""Writes the checksums of the functions behind kernels again: `python -m runnel.kernels.write_fingerprints`.

Run it after you have changed the kernels with those functions and the tests of `tests/unit/kernels` pass; see `stock.py`.
"""

import json

from runnel.kernels.stock import FILE, all_fingerprints

if __name__ == "__main__":
    FILE.write_text(json.dumps(all_fingerprints(), indent=1) + "\n")
