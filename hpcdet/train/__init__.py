"""The base of every training loop: ranks, signals, agreement, randomness, order of samples."""
