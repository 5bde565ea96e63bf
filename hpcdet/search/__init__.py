"""Searchers: which trials exist, how long each trains, which stop. Pure and replayable."""
