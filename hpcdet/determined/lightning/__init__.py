"""``determined.lightning``: ``experimental`` has a logger (``hpcdet.integrations.lightning``)."""
