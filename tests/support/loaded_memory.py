"""Loads a checkpoint's weights and prints the bytes of anonymous memory taken: at the peak, at the end.

python loaded_memory.py MODEL
"""

from __future__ import annotations

import ctypes
import sys
import threading
from itertools import product
from pathlib import Path

import torch
from arbora.kernels.linear import CodedShape, Linear
from arbora.kernels.linear.fp8 import Fp8CpuPacker
from arbora.kernels.linear.integer import IntegerCpuPacker
from arbora.runtime.model.decoder_config import load_decoder_config
from arbora.runtime.model.weight_formats import Checkpoint, ProjectionLoader, load_weight_formats
from arbora.runtime.model.weights import load_weights


def anonymous() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


class Peak:
    """Watches the process's anonymous memory from a thread until it is stopped."""

    def __init__(self) -> None:
        self.most = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> int:
        self._stopped.set()
        self._thread.join()
        return max(self.most, anonymous())

    def _watch(self) -> None:
        while not self._stopped.wait(0.0005):
            self.most = max(self.most, anonymous())


def main() -> None:
    model = Path(sys.argv[1])
    allow_no_huge_pages()
    pack_once()
    before = anonymous()
    peak = Peak()
    checkpoint = Checkpoint(model)
    choose = load_weight_formats(model, checkpoint.names).choose
    loader = ProjectionLoader(checkpoint, choose, torch.bfloat16, torch.device("cpu"), batch_invariant=False)
    weights = load_weights(loader, load_decoder_config(model))
    after = anonymous()
    print(max(peak.stop(), after) - before, after - before)
    assert weights.layers


def allow_no_huge_pages() -> None:
    """They would be counted whole, however little of them is used."""
    set_thp_disable = 41  # linux/prctl.h
    assert ctypes.CDLL(None).prctl(set_thp_disable, 1, 0, 0, 0) == 0


def pack_once() -> None:
    """The libraries and kernels that pack weights allocate memory of their own when they are first used."""
    Linear.pack(torch.zeros(64, 64, dtype=torch.bfloat16), None)
    for bits, zero in product((4, 8), (None, 8)):
        packer = IntegerCpuPacker(CodedShape(64, 64, bits, 64, zero))
        codes, scales = torch.zeros(64, 64, dtype=torch.uint8), torch.ones(64, 1)
        packer.write(0, codes, scales, scales if zero is None else None)
        packer.product(None).rows(torch.arange(4))
    fp8 = Fp8CpuPacker(CodedShape(64, 64, None, 64, 0))
    fp8.write(0, torch.zeros(64, 64).to(torch.float8_e4m3fn), torch.ones(64, 1))
    fp8.product(None).rows(torch.arange(4))


if __name__ == "__main__":
    main()
