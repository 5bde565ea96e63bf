"""Sections of the config that have modules of their own."""
