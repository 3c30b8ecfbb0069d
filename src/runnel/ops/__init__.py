"""Pure maths on tensors: returns, credit, distributions, masked reductions, running statistics."""

from typing import TYPE_CHECKING

from runnel.core.lazy import lazy_names

if TYPE_CHECKING:
    from runnel.ops.constraints import lagrangian_advantage as lagrangian_advantage, next_multipliers as next_multipliers
    from runnel.ops.credit import (
        against_baseline_row as against_baseline_row,
        best_and_worst as best_and_worst,
        group_advantage as group_advantage,
        group_mean as group_mean,
        group_spread as group_spread,
        group_sum as group_sum,
        leave_one_out as leave_one_out,
    )
    from runnel.ops.decisions import (
        Decisions as Decisions,
        decisions as decisions,
        gae_of_decisions as gae_of_decisions,
        step_of_outcome as step_of_outcome,
        with_outcome as with_outcome,
    )
    from runnel.ops.distributions import (
        categorical_evaluate as categorical_evaluate,
        categorical_mode as categorical_mode,
        categorical_sample as categorical_sample,
        gaussian_evaluate as gaussian_evaluate,
        gaussian_mode as gaussian_mode,
        gaussian_sample as gaussian_sample,
        mask_logits as mask_logits,
        squashed_gaussian as squashed_gaussian,
    )
    from runnel.ops.credit import last_of_row as last_of_row, row_index as row_index, row_sum as row_sum, token_gae as token_gae
    from runnel.ops.metagame import (
        MetaSolver as MetaSolver,
        META_SOLVERS as META_SOLVERS,
        deviation_gains as deviation_gains,
        meta_strategies as meta_strategies,
        meta_strategy as meta_strategy,
    )
    from runnel.ops.returns import (
        VTrace as VTrace,
        discounted_suffix_sum as discounted_suffix_sum,
        explained_variance as explained_variance,
        gae as gae,
        standardise as standardise,
        vtrace as vtrace,
    )
    from runnel.ops.targets import (
        c51_target as c51_target,
        hl_gauss_target as hl_gauss_target,
        min_target as min_target,
        n_step_returns as n_step_returns,
        soft_target as soft_target,
        soft_target_discrete as soft_target_discrete,
    )
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
