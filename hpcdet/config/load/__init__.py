"""Loading: files, flags and layers become one checked config; edits keep a file's text.

A module belongs here if it reads or edits text that people wrote.
"""
