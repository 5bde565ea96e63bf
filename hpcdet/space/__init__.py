"""The language of hyperparameters: what a search may choose from (docs/config.md)."""
