"""A simulated cluster that runs real searchers, to forecast a search at no cost."""
