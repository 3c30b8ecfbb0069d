"""Pure maths on tensors: returns, credit, distributions, masked reductions, running statistics."""
