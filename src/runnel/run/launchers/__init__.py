"""How the workers of a run are started: all in this process, or one process per group."""
