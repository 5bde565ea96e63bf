"""From the gradients of one backward pass to the sum over all ranks: one reducer per strategy.

May come in: reducers (alone, DDP, FSDP2, virtual ranks), how they divide a global batch, and what
they need of models: buffers, units, compression. Nothing outside asks which reducer it has.
"""
