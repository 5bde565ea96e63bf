"""The ledger of a trial's attempt, which rank 0 writes, and its agreement with checkpoints.

May come in: what turns training into records, and compares them with a checkpoint's. How records
are chained, sealed and verified is ``policy.ledger``'s.
"""
