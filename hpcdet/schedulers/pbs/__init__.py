"""The PBS backend: commands, their output, states and ends, reasons for waiting.

A module belongs here if it knows a word of PBS's. It is for OpenPBS and PBS Professional.
"""
