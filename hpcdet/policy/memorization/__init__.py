"""Tests of memorization: twins, canaries, and the levels at which they are tested.

May come in: what chooses records that are withheld or inserted, and judges their losses.
"""
