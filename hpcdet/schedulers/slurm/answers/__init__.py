"""What Slurm's commands print, and what it means. Pure: text in, values of ``base`` out.

A module belongs here if it reads and runs nothing.
"""
