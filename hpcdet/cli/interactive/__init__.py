"""Verbs for work beside experiments: notebooks, TensorBoards, shells, single commands."""
