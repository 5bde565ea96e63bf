"""Files on shared storage: written whole, journaled, bounded, packed.

A module belongs here if it would serve another program as well.
"""
