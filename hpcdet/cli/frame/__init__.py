"""The frame of every verb: settings, output formats, identifiers, progress, help.

A module belongs here if verbs of several rooms need it.
Nothing here knows a single verb.
"""
