"""Site files: their search path and inheritance, and which of them fits this host."""
