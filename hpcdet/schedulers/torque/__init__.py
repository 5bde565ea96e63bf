"""The Torque backend: commands, their output, states and ends, facts of the server.

A module belongs here if it knows what Torque does and PBS does not, or what Slurm's wrappers with
the names of its commands do.
"""
