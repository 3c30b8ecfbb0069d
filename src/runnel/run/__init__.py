"""A run: its experiment, the wiring that assembles it, launchers, checkpoints and the run folder."""
