"""One training step: backward, gradient reduction over ranks, optimizer.

A module belongs here if it touches parameters, gradients or buffers.
"""
