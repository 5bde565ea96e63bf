"""Telemetry: time by phase, machine use, and the journal that records both.

A module belongs here if training would give the same bits without it.
"""
