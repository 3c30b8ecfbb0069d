"""Pure maths on tensors: returns, credit, distributions, log-probabilities, masked reductions, running statistics."""
