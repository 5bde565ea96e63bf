"""Search spaces: the language of ``hyperparameters`` and its samples (docs/config.md)."""
