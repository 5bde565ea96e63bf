"""Repeating a run from its capsule: what is as it was, and what has to be put back.

``present`` says what a run would depend on now, ``restored_data`` and ``restored_packages`` put
files and packages back, ``repetition`` mixes then and now into a new experiment. Who runs it is
above: a verb, or the client.
"""
