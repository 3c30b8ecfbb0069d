"""The five workers: actor, policy, trainer, buffer, evaluator."""
