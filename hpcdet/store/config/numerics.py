"""The processor, BLAS and variables that change the bits of a computation."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Iterator, Mapping
from importlib import metadata

_PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NUMEXPR_")
_NAMES = frozenset({
    "ATEN_CPU_CAPABILITY", "CUBLAS_WORKSPACE_CONFIG", "DNNL_MAX_CPU_ISA", "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_MAX_CPU_ISA", "PYTHONHASHSEED", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
})  # fmt: skip
_PLACES = ("AFFINITY", "PLACES")
"""In the names of variables that say on which cores threads run: no bit depends on it."""
_CPU = ("model name", "CPU implementer", "CPU part", "cpu")
"""Keys of /proc/cpuinfo that name the processor: of x86, of ARM (both), of POWER."""
_THREADS = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)  # fmt: skip
_ACCELERATORS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_BLAS = re.compile(r"(openblas|mkl_rt|blis)[^/]*\.so")
_OPENBLAS = (("", ""), ("", "64_"), ("scipy_", ""), ("scipy_", "64_"))
"""What builds of OpenBLAS put before and behind the names of its functions."""


def processor() -> str:
    """The model of the processor, with the number of the model's part where it has no name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            pairs = [line.split(":", 1) for line in file if ":" in line]
    except OSError:
        pairs = []
    known = {name.strip(): " ".join(value.split()) for name, value in reversed(pairs)}
    found = [known[name] for name in _CPU if known.get(name)]
    return " ".join(found) or platform.processor() or platform.machine()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment variables by which libraries choose threads, kernels and precision, by name."""
    known = os.environ if environ is None else environ
    return {
        name: known[name]
        for name in sorted(known)
        if (name in _NAMES or name.startswith(_PREFIXES))
        and not any(part in name for part in _PLACES)
    }


def imposed(threads: int | None, device: str | None) -> dict[str, str]:
    """Environment variables by which a rank has so many threads, and sees no accelerator.

    Args:
        threads, device: of the config's ``reproducibility``.
    """
    found = dict.fromkeys(_THREADS, str(threads)) if threads is not None else {}
    return found | (dict.fromkeys(_ACCELERATORS, "") if device == "cpu" else {})


def installed_blas() -> list[str]:
    """File names of the BLAS that numpy's package brings; nothing is loaded.

    A numpy that was built against the system's BLAS brings none.
    """
    try:
        listed = metadata.files("numpy") or []
    except metadata.PackageNotFoundError:
        return []
    return sorted({one.name for one in listed if _BLAS.search(one.name)})


def loaded_blas() -> dict[str, int]:
    """Threads of each BLAS in this process, by its version with the kernels that it chose.

    Those that are linked into another library (torch's MKL) are not among them, nor is scipy's
    own, which is loaded when the first of the code's modules asks for it.
    """
    return dict(sorted(found for path in _mapped() if (found := _asked(path)) is not None))


def _mapped() -> Iterator[str]:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
            paths = {line.rstrip("\n").split(maxsplit=5)[-1] for line in file}
    except OSError:
        return
    yield from (path for path in paths if _BLAS.search(path) and "/scipy.libs/" not in path)


def _asked(path: str) -> tuple[str, int] | None:
    """Version and threads of a library, by its own functions; None if it has none of them."""
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None
    if hasattr(library, "mkl_get_version_string"):
        text = ctypes.create_string_buffer(256)
        library.mkl_get_version_string(text, len(text))
        return " ".join(text.value.decode().split()), int(library.MKL_Get_Max_Threads())
    if hasattr(library, "bli_info_get_version_str"):
        library.bli_info_get_version_str.restype = ctypes.c_char_p
        version = library.bli_info_get_version_str().decode()
        return f"BLIS {version}", int(library.bli_thread_get_num_threads())
    for before, behind in _OPENBLAS:
        name = f"{before}openblas_get_config{behind}"
        if hasattr(library, name):
            config = getattr(library, name)
            config.restype = ctypes.c_char_p
            threads = getattr(library, f"{before}openblas_get_num_threads{behind}")
            return " ".join(config().decode().split()), int(threads())
    return None
