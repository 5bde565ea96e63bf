"""Determined's launchers, in the middle of a command that is run as it is.

hpcdet starts each rank with the whole entrypoint, so that here they only make way for what they
would launch. Where the entrypoint is nothing but a launcher and a script, none of this runs.
"""
