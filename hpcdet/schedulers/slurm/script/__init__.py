"""Scripts for ``sbatch``: options, what policies require of nodes, and scripts of users."""
