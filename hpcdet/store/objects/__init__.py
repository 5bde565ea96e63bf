"""Object stores: where copies of what is kept go, and the records of what is there.

A module belongs here if it treats objects by their keys; ``checkpoint.keep`` says which there are.
"""
