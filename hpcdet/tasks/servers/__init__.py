"""Servers of interactive tasks, on Unix sockets that their user alone can reach."""
