"""Import this before the Triton kernels: they then run in Triton's interpreter, on CPU tensors."""

import os
import sys

assert "triton" not in sys.modules or os.environ.get("TRITON_INTERPRET") == "1", "Triton is loaded already"
os.environ["TRITON_INTERPRET"] = "1"
