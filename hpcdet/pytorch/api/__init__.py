"""Classes that users write against: trial, context, data loader, scheduler, callback.

A class belongs here if it stands in Determined's API or is handed to user code.
"""
