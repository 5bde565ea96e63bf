"""What a run's bits depend on, as its experiment recorded it, compared with another time.

A run is repeated by ``jobs.repeat``; here nothing is run, and nothing of torch is imported.
"""
