"""Import this before Triton: its kernels then run on `DEVICE`, without a GPU in Triton's interpreter."""

import os
import sys

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

if DEVICE.type == "cpu":
    assert "triton" not in sys.modules or os.environ.get("TRITON_INTERPRET") == "1", "Triton was imported"
    os.environ["TRITON_INTERPRET"] = "1"
