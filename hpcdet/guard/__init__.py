"""Governed training on a rank: gradients are routed by a policy, measured, and accounted for.

May come in: layers of live models, routed operators, probes, exposure, and what of them a
checkpoint holds. Imported only where an experiment has a policy.
"""
