"""Other frameworks' training loops on the Core API: one module each, imported by name.

Importing this package, or anything else of hpcdet, imports no framework.
"""
