# ruff: noqa: F401
"""Imported by the process that runs on text are forked from, beside `early_for_runs`; Numba is made ready to load what it has
compiled."""

import runnel.graphs.prompts
import runnel.llm.engines.choose
import runnel.llm.engines.hf
import runnel.llm.engines.native
import runnel.llm.evaluation
import runnel.llm.learning.sharded
import runnel.llm.model.tiny
import runnel.llm.policy
import runnel.llm.sampling.demos
import runnel.llm.sampling.sampler
import runnel.recipes.grpo
from runnel.kernels.lm.numba.loops import has_numba

if has_numba():
    import numba.core.ccallback
    from numba.core.registry import cpu_target

    import runnel.kernels.lm.numba.decode_loops

    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()
