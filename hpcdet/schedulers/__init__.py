"""Backends: what submits, finds, watches and cancels jobs."""
