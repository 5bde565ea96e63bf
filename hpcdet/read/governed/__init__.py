"""Trials under a policy: exposure of layers, checks, and costs."""
