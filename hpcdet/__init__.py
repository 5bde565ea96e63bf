"""hpcdet: training on Slurm and PBS clusters, with no server."""

__version__ = "0.1.0"
