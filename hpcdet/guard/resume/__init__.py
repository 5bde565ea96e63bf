"""The state of governance in a checkpoint, and its verification before training goes on.

May come in: what a checkpoint keeps of a guard, and checks of it against a live trial, a module
for each subject, each with its G code.
"""
