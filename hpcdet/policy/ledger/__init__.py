"""Ledgers: what was permitted and trained, record by record, hash-chained and signed.

A ledger says what layers were permitted and exposed to learn from. It is no proof of influence, and
whoever holds the run's key can write another one: it finds damage, truncation and later edits.
"""
