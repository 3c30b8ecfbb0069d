"""Write the checksums of the functions that kernels stand for anew: `python -m runnel.kernels.write_fingerprints`.

After the kernels were changed with those functions, and the tests of `tests/unit/kernels` have passed; see `stock.py`.
"""

import json

from runnel.kernels.stock import FILE, all_fingerprints

if __name__ == "__main__":
    FILE.write_text(json.dumps(all_fingerprints(), indent=1) + "\n")
