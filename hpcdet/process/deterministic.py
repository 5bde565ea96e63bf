"""``reproducibility.deterministic``: the switches of torch, and what cannot be deterministic."""

from __future__ import annotations

import os
import re
import sys
import traceback
from pathlib import Path

import torch

import hpcdet
from hpcdet.errors import ConfigError

WHERE = "reproducibility.deterministic: true"
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_DETERMINISTIC = (":4096:8", ":16:8")
_REFUSAL = re.compile(r"^(\S+) does not have a deterministic implementation")
_NOT_THE_USERS = tuple(Path(file).resolve().parent for file in (hpcdet.__file__, torch.__file__))


def demand() -> None:
    """Have torch compute the same bits each time, or raise; before anything touches CUDA.

    Raises:
        ConfigError: the environment or code before this has chosen otherwise for good.
    """
    chosen = os.environ.setdefault(_WORKSPACE, _DETERMINISTIC[0])
    if chosen not in _DETERMINISTIC:
        raise ConfigError(
            f"{_WORKSPACE}={chosen} lets cuBLAS choose from run to run",
            where=WHERE,
            hint=f"make it {' or '.join(_DETERMINISTIC)}, or leave it out",
        )
    if "torch._inductor" in sys.modules:
        torch.use_deterministic_algorithms(True)
    else:  # the same, without importing the compiler to tell it so: it reads this where it is used
        os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1"
        torch.set_deterministic_debug_mode("error")
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    # what TF32 rounds away depends on the device, and on who asked for it before
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def refusal(error: BaseException) -> ConfigError | None:
    """Which operation of whose code torch refuses because it is not deterministic, if it does."""
    match = _REFUSAL.match(str(error)) if isinstance(error, RuntimeError) else None
    if match is None:
        return None
    return ConfigError(
        f"{match[1]} has no deterministic implementation on this device{_place(error)}",
        where=WHERE,
        hint="use another operation there, or train without: the same bits are not promised then",
    )


def _place(error: BaseException) -> str:
    """The innermost line of the user's code that led to an error."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        if not any(path.is_relative_to(place) for place in _NOT_THE_USERS):
            return f": {frame.line} ({path.name}, line {frame.lineno})"
    return ""
