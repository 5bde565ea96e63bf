"""Policies as people write them: read, checked, and compiled to what is enforced.

A module belongs here if it turns the text of a policy into ``hpcdet.policy.compiled``.
"""
