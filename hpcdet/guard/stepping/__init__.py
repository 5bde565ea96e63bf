"""Steps of optimizers: what each layer has admitted since the last, and gradients divided by it.

May come in: windows of accumulation, divisors, clipping.
"""
