"""Samplers that learn from trials, in this process or in one of their own.

A sampler belongs here if it has a model of results.
"""
