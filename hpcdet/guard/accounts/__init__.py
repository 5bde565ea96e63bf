"""The ledger that rank 0 writes of a trial's attempt, and what a checkpoint says of it.

May come in: what turns training into records. How records are chained, sealed and verified is
``policy.ledger``'s.
"""
