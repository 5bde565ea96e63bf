"""What the fork server of ``tests.ranks`` imports once for all ranks."""

import sklearn.datasets
import torch.distributed.fsdp

import hpcdet.attempt
import hpcdet.pytorch.rehearsal

__all__ = ["hpcdet", "sklearn", "torch"]
