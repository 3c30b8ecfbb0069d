"""Pure losses: tensors and coefficients in, a scalar and its metrics out."""
