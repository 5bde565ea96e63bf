"""The readers' side: views of an experiment for people and scripts, from its files alone."""
