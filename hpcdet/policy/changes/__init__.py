"""Changes of an experiment's policy: what they change, who has signed them, what is in effect.

May come in: what compares policies, and the records ``EXP/policies/NNNN.json``.
"""
