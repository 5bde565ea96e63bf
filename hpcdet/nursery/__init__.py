"""A process that has imported what every rank needs, and forks ranks from there.

A rank that is forked imports nothing but the user's code: neither the processor nor the file system
pays for torch again. So that it is as a new process would be, nothing has happened in its parent
but imports: no code of the user's, no thread, no operator of torch, nothing of a device.
"""
