from aot_cases import SHARED, AotCase

ATTEND = {
    "items": "*i32",
    "tables": "*i32",
    "q_stride": "i32",
    "slots": "i32",
    "scale_log2": "fp32",
    "window": "i32",
}


def _attend(
    name: str,
    tiles: tuple[int, int, int],
    head_dim: int,
    page_size: int = 16,
    dtype: str = "bf16",
    window: bool = False,
    stages: int = 3,
    stored: str | None = None,
) -> AotCase:
    """tiles: queries, keys, warps, as `attention.cuda.Tiles` chooses them. stages: as
    `attention.cuda.stages` does. stored: "int8" or "fp8" cells"""
    tensors = {
        "q": f"*{dtype}",
        "kv": "*i8" if stored else f"*{dtype}",
        "scales": "*fp32" if stored else f"*{dtype}",
        "out": f"*{dtype}",
        "partial": "*fp32",
        "partial_sum": "*fp32",
    }
    queries, keys, warps = tiles
    return AotCase(
        name=f"attend-{name}",
        kernel="attention.cuda_kernels:attend_kernel",
        signature={**tensors, **ATTEND},
        constants={
            "KV_HEADS": 8,
            "REPEAT": 4,
            "HEAD_DIM": head_dim,
            "CELL": head_dim + 4 if stored else head_dim,
            "PAGE_SIZE": page_size,
            "BLOCK_QUERIES": queries,
            "BLOCK_KEYS": keys,
            "BLOCK_DIM": 1 << (head_dim - 1).bit_length(),
            "COLUMNS": 8,
            "SCALED": stored is not None,
            "FP8": stored == "fp8",
            "WINDOW": window,
        },
        num_warps=warps,
        num_stages=stages,
        max_shared={**SHARED, 80: 99 << 10 if stages == 2 or head_dim <= 128 else SHARED[80]},
        max_spill_bytes=128,  # stored before the loops, loaded after them
        max_loop_spills=12 if window else 6 if stored == "fp8" else 0,  # sm_80: two registers in each loop
        pipelined_loops=0 if stages == 2 else 3 if window else 2,
        aligned=("q_stride", "slots"),
    )


CASES = [
    _attend("decode-64", (16, 64, 4), 64),
    _attend("decode-128", (16, 64, 4), 128),
    _attend("decode-128-group", (64, 64, 8), 128),
    _attend("decode-256", (16, 32, 4), 256),
    _attend("decode-128-pages-of-1", (16, 64, 4), 128, page_size=1),
    _attend("decode-128-window", (16, 64, 4), 128, window=True),
    _attend("chunk-64", (128, 64, 8), 64),
    _attend("chunk-80", (128, 64, 8), 80),
    _attend("chunk-128", (128, 64, 8), 128),
    _attend("chunk-128-short", (64, 64, 8), 128),
    _attend("chunk-128-window", (128, 64, 8), 128, window=True),
    _attend("chunk-256", (64, 32, 4), 256),
    _attend("chunk-256-small-memory", (64, 32, 4), 256, stages=2),
    _attend("128-float32", (16, 16, 4), 128, dtype="fp32"),
    *(
        _attend(f"{name}-{stored}-{dtype}", tiles, 128, dtype=dtype, stored=stored)
        for name, tiles in (
            ("decode-128", (16, 32, 4)),
            ("decode-128-group", (64, 32, 8)),
            ("chunk-128", (128, 32, 8)),
        )
        for stored in ("int8", "fp8")
        for dtype in ("bf16", "fp16")
    ),
    *(_attend(f"decode-64-{stored}", (16, 32, 4), 64, stored=stored) for stored in ("int8", "fp8")),
    _attend("decode-128-pages-of-1-int8", (16, 32, 4), 128, page_size=1, stored="int8"),
    _attend("decode-128-window-int8", (16, 32, 4), 128, window=True, stored="int8"),
    _attend("decode-256-int8", (16, 16, 4), 256, stored="int8"),
    _attend("chunk-256-int8", (64, 16, 8), 256, stored="int8"),
    AotCase(
        name="merge-128",
        kernel="attention.cuda_kernels:merge_kernel",
        signature={"partial": "*fp32", "partial_sum": "*fp32", "merges": "*i32", "out": "*bf16"},
        constants={"HEADS": 32, "HEAD_DIM": 128, "BLOCK_DIM": 128, "BLOCK_PARTS": 16},
    ),
]
