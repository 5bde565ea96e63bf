"""Scripts for ``qsub``: directives, what policies require of hosts, scripts of users.

A module belongs here if it knows an option of ``qsub``.
"""
