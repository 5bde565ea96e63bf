"""Who decides: one turn of the crank, by whoever holds the lease."""
