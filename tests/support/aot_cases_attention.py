from dataclasses import replace

from aot_attention import Variant, attention_case, covering
from aot_cases import AotCase

CHUNK_256 = Variant("chunk", 80, "bf16", 256, 4, 16)

CASES = [
    *(attention_case(variant) for variant in covering()),
    replace(
        attention_case(CHUNK_256, stages=2),
        name="attend-chunk-256-small-memory",
        max_shared=99 << 10,
    ),
    AotCase(
        name="merge-128",
        kernel="attention.cuda_kernels:merge_kernel",
        signature={
            "partial": "*fp32",
            "partial_sum": "*fp32",
            "merges": "*i32",
            "sinks": "*fp32",
            "out": "*bf16",
        },
        constants={"SINKS": True, "HEADS": 32, "HEAD_DIM": 128, "BLOCK_DIM": 128, "BLOCK_PARTS": 8},
        num_warps=1,
    ),
]
_FLOAT32 = attention_case(Variant("decode", 80, "fp32", 128, 4, 16))
CASES.append(
    replace(
        _FLOAT32,
        name="attend-decode-128-float32",
        constants={**_FLOAT32.constants, "BLOCK_KEYS": 16},
        architectures=(80, 90, 100),
        products=None,
        programs=1,
    )
)
