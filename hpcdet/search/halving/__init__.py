"""Successive halving: brackets, rungs, and the rules of ASHA, Hyperband and PASHA.

A module belongs here if it decides at a rung.
"""
