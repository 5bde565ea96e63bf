"""A stand-in for ruamel.yaml, which examples import and use outside of experiments only."""
