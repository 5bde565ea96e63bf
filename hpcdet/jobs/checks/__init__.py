"""Checks before a submission: the site, quotas, training pace, queue waits, decision delays.

A module belongs here if its answer may warn or refuse, and changes nothing.
"""
