"""Search methods without rungs or populations: grid, random, given points, own programs.

A method belongs here if it compares no trial with another.
"""
