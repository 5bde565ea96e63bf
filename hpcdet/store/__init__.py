"""The experiment's folder: the only place where the two towers meet."""
