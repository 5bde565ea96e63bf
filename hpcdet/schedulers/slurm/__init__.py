"""The Slurm backend: commands, their output, reasons for waiting, facts of the cluster.

A module belongs here if it knows a word of Slurm's.
"""
