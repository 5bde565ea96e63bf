"""Ed25519 keys: their files, and the key of an experiment's runs.

May come in: what reads, draws or certifies a key. What a signature is about is elsewhere.
"""
