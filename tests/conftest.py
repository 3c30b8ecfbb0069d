"""Shared by all tests: one torch thread (two would fight over the cores), and what several of them make use of: the tiny slices
that system tests run, and the ends of remote streams."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
for folder in ("system", "contract"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
