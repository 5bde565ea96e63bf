"""Cost: budgets, limits, charges, and what attempts have spent.

A module belongs here if it counts slots, seconds or money.
"""
