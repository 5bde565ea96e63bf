"""Verbs on governance: policies, and what trained under them.

A module belongs here if its verb is about which data may change which layers.
"""
