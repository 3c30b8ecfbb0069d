"""The five workers: actor, policy, transform, trainer, evaluator."""
