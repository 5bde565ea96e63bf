"""Training governance as data: policies, provenance, ledgers, statements, and their mathematics.

May come in: what both towers compute from files and numbers. No torch, no pydantic, no click;
``cryptography`` is imported by the functions that need it.
"""
