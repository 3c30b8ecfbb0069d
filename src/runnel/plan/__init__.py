"""Before a run: what its stages cost here, which placement of a cluster is fastest, and a simulation of thousands of cores."""
