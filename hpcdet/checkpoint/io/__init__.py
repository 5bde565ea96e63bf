"""Input and output at the speed of the disk: direct writes, read buffers, memory limits.

A module belongs here if it would serve any large file.
Nothing here knows the format of a checkpoint.
"""
