"""One attempt: startup, session, control, verdict.

A module belongs here if it knows that training is an attempt of a trial.
"""
