"""A private Slurm on this machine, for tests and for trying things out.

``python -m tests.cluster slurm up`` boots one, ``down`` ends it, ``env`` prints what a shell needs
to talk to it. Needs root and Debian's Slurm, munge and MariaDB packages; all state is in one
folder, nothing of the machine's own configuration is read or changed.
"""
