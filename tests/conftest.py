"""Shared by all tests: one torch thread (two would fight over the cores), and the tiny slices that system tests run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parent / "system"))
