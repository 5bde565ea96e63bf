"""The live view: a read-only HTTP server for its user alone, on a Unix socket.

It imports ``read``, ``registry`` and ``store`` only, so that nothing in it can change an
experiment, and writes nothing below the root.
"""
