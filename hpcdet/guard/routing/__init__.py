"""The gradients of rows and where they go: layers of a live model, and operators that obey them.

May come in: modules that routing changes, operators, and what routed gradients are compared with.
"""
