"""What every training loop stands on: ranks, signals, agreement, randomness, order of samples."""
