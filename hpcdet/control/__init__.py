"""The control of an experiment: turns of the crank by the holder of the lease."""
