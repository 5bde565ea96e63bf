"""Campaigns that show what governance does, each by real experiments."""
