"""Print the path of an iteration, file by file.

python -m benchmarks.path           both runs
python -m benchmarks.path ppo       one of them
"""

from __future__ import annotations

import sys

from benchmarks.path.iteration import PLAIN, Functions, profile


def show(functions: Functions) -> None:
    for number, (file, names) in enumerate(functions.items(), 1):
        print(f"{number:4} {file}: {', '.join(names)}")


for recipe in sys.argv[1:] or PLAIN:
    found = profile(recipe)
    print(f"{recipe}: {len(found.iteration)} files in one iteration")
    show(found.iteration)
    print(f"{recipe}: {len(found.between)} files between two iterations, not counted above")
    show(found.between)
