"""The parts of ``make bench-start``."""
