"""Verbs that start something: plan, simulate, test, submit, fork.

A verb belongs here if it begins from a config.
"""
