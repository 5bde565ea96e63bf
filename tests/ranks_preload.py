"""What the fork server of ``tests.ranks`` imports once for all ranks."""

import sklearn.datasets
import torch._dynamo  # an optimizer's first step would
import torch.distributed.fsdp

import hpcdet.attempt
import hpcdet.rehearsal

__all__ = ["hpcdet", "sklearn", "torch"]
