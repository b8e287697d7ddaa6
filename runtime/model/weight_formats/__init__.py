"""The formats in which checkpoints store the decoder's projections, and their loader."""

from .checkpoint import Checkpoint
from .loader import EmbeddingRows, ProjectionLoader, projection_tensors
from .packed_copy import PackedCopy, open_packed_copy
from .quantization_config import WeightFormats, checkpoint_formats, load_weight_formats
from .quantized_cache import open_quantized_copy
from .weight_format import (
    ChooseFormat,
    FloatFormat,
    Projection,
    Run,
    Split,
    TensorSpec,
    by_inputs,
    by_outputs,
)

__all__ = [
    "Checkpoint",
    "ChooseFormat",
    "EmbeddingRows",
    "FloatFormat",
    "PackedCopy",
    "Projection",
    "ProjectionLoader",
    "Run",
    "Split",
    "TensorSpec",
    "WeightFormats",
    "by_inputs",
    "by_outputs",
    "checkpoint_formats",
    "load_weight_formats",
    "open_packed_copy",
    "open_quantized_copy",
    "projection_tensors",
]
