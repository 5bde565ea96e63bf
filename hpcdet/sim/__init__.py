"""A simulated cluster that runs real searchers: what a search does before it costs anything."""
