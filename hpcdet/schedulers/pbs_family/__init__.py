"""Parts of the backends for schedulers of PBS's family: ids, commands, texts, scripts for ``qsub``.

A module belongs here if PBS and Torque both need it.
"""
