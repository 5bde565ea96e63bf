"""Checks of a governed checkpoint before training goes on, a module for each subject.

May come in: what is compared with a live trial, each check with its G code.
"""
