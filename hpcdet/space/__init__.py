"""Search spaces: the language of ``hyperparameters`` and its samples (docs/reference/config.md)."""
