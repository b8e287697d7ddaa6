"""The machine: devices, dtypes, cores, free memory, the C library's heap."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

import torch

from ...kernels.pages.cells import FP8
from ..config import ServeConfig
from ..errors import ConfigError
from ..system_cores import count_usable_cores
from ..system_memory import free_host_memory

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # numbers of mallopt's parameters in glibc
LOADING_BYTES = 1 << 20
SERVING_BYTES = 32 << 20
"""the maximum of glibc's mmap threshold, which glibc raises from 128 KiB as larger blocks are freed"""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(config: ServeConfig) -> torch.device:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"--device cuda: {_why_no_cuda()} Or use --device cpu.")
    if config.device == "cuda" and find_spec("triton") is None:
        raise ConfigError("--device cuda: Triton is missing: pip install triton. Or use --device cpu.")
    return torch.device(config.device)


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built for CPUs only. Install one that is built for CUDA."
    return (
        f"PyTorch {torch.__version__} finds no GPU that it can use. Its CUDA {torch.version.cuda} may need a "
        "newer driver (nvidia-smi), or CUDA_VISIBLE_DEVICES may hide the GPU."
    )


def choose_dtype(asked: str, stated: str | None, stored: torch.dtype) -> torch.dtype:
    """The dtype that the user `asked` for, else `stated` in config.json, else that of `stored` weights."""
    if asked != "auto":
        return DTYPES[asked]
    if stated is None:
        return stored
    name = stated.removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(
            f"dtype {stated} of the model is not supported. Choose --dtype {' | '.join(DTYPES)}."
        )
    return DTYPES[name]


def kv_dtype(config: ServeConfig, dtype: torch.dtype) -> torch.dtype:
    """The dtype of the KV cache's tensors if activations have `dtype`."""
    return {"auto": dtype, "int8": torch.int8, "fp8": FP8}[config.kv_dtype]


def use_all_cores() -> None:
    """Uses one thread for each physical core that this process may keep busy, unless OMP_NUM_THREADS is
    set."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(count_usable_cores())


def free_memory(device: torch.device) -> int:
    """Bytes that can be allocated without swapping, within the container's limit."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_host_memory()


@contextmanager
def outside_heap() -> Iterator[None]:
    """Context in which each memory block of a MiB or more gets its own mapping.

    Temporary copies of weights would leave gaps in the heap, which keep their memory, and a block from the
    heap may have the memory of an earlier block before it is written. Later blocks come from the heap again,
    because a step must not wait for the system's memory. No effect without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(MMAP_THRESHOLD, LOADING_BYTES)
    try:
        yield
    finally:
        mallopt(MMAP_THRESHOLD, SERVING_BYTES)
        mallopt(TRIM_THRESHOLD, 2 * SERVING_BYTES)


class HostCopies:
    """Copies of tensors on the host. They are complete when all work that was launched before is done."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._copies = [tensor.to("cpu", non_blocking=True, copy=True) for tensor in tensors]
        on_device = any(tensor.device.type != "cpu" for tensor in tensors)
        self._copied = torch.cuda.current_stream().record_event() if on_device else None

    def ready(self) -> bool:
        return self._copied is None or bool(self._copied.query())

    def wait(self) -> list[torch.Tensor]:
        if self._copied is not None:
            self._copied.synchronize()
        return self._copies
