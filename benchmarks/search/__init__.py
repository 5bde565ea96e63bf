"""``make bench-search``, the part that runs beside the peers in their virtual environment."""
