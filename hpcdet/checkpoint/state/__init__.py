"""Training state as a tree of plain values and tensors, and its partition over ranks.

A module belongs here if it works on state in memory.
Nothing here opens a file.
"""
