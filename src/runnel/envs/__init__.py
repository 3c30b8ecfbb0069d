"""Everything that steps: environments by name, vectors of them, and the sampler that plays them."""
