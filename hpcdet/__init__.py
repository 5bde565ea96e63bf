"""hpcdet: training on Slurm clusters, with no server."""

__version__ = "0.1.0"
