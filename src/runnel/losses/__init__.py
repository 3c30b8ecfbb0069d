"""Pure losses: tensors and coefficients in, a scalar and its metrics out."""

from typing import TYPE_CHECKING

from runnel.core.lazy import lazy_names

if TYPE_CHECKING:
    from runnel.losses.actor import (
        deterministic_actor_loss as deterministic_actor_loss,
        ensemble_td_loss as ensemble_td_loss,
        soft_actor_loss as soft_actor_loss,
        soft_actor_loss_discrete as soft_actor_loss_discrete,
        temperature_loss as temperature_loss,
    )
    from runnel.losses.base import Loss as Loss, masked_mean as masked_mean, masked_sum as masked_sum
    from runnel.losses.on_policy import (
        approximate_kl as approximate_kl,
        clipped_policy_loss as clipped_policy_loss,
        huber_value_loss as huber_value_loss,
        policy_gradient_loss as policy_gradient_loss,
        value_loss as value_loss,
    )
    from runnel.losses.preference import bradley_terry_loss as bradley_terry_loss, dpo_loss as dpo_loss
    from runnel.losses.td import categorical_td_loss as categorical_td_loss, huber_td_loss as huber_td_loss
    from runnel.losses.token import (
        decoupled_policy_loss as decoupled_policy_loss,
        distance_loss as distance_loss,
        entropy_loss as entropy_loss,
        external_loss as external_loss,
        kl_loss as kl_loss,
        log_linear_proximal as log_linear_proximal,
        mirror_descent_loss as mirror_descent_loss,
        pairwise_policy_loss as pairwise_policy_loss,
        policy_loss as policy_loss,
        reinforce_loss as reinforce_loss,
        score_label_loss as score_label_loss,
        sequence_policy_loss as sequence_policy_loss,
        sft_loss as sft_loss,
        tapered_loss as tapered_loss,
        token_value_loss as token_value_loss,
        truncated_loss as truncated_loss,
    )
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
