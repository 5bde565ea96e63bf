"""``determined.pytorch.experimental``: a data set processed batch by batch, on all ranks."""

from hpcdet.determined.pytorch.experimental._batches import (
    TorchBatchProcessor,
    TorchBatchProcessorContext,
    get_default_device,
    torch_batch_process,
)

__all__ = [
    "TorchBatchProcessor",
    "TorchBatchProcessorContext",
    "get_default_device",
    "torch_batch_process",
]
