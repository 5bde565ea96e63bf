"""Communication between ranks: collectives, messages, agreement on a step.

A module belongs here if it exchanges values after the ranks have met.
How ranks meet belongs to ``meeting``.
"""
