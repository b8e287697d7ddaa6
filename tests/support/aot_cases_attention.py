from aot_cases import SHARED, AotCase

ATTEND = {
    "items": "*i32",
    "tables": "*i32",
    "q_stride": "i32",
    "plane": "i64",
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
) -> AotCase:
    """tiles: queries, keys, warps, as `attention.cuda.Tiles` chooses them. stages: as `attention.cuda.stages`
    does."""
    tensors = {
        "q": f"*{dtype}",
        "kv": f"*{dtype}",
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
            "PAGE_SIZE": page_size,
            "BLOCK_QUERIES": queries,
            "BLOCK_KEYS": keys,
            "BLOCK_DIM": 1 << (head_dim - 1).bit_length(),
            "COLUMNS": 8,
            "WINDOW": window,
        },
        num_warps=warps,
        num_stages=stages,
        max_shared={**SHARED, 80: 99 << 10 if stages == 2 or head_dim <= 128 else SHARED[80]},
        max_spill_bytes=128,  # stored before the loops, loaded after them
        max_loop_spills=12 if window else 0,  # sm_80: two registers in each loop
        pipelined_loops=0 if stages == 2 else 3 if window else 2,
        aligned=("q_stride", "plane"),
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
    AotCase(
        name="merge-128",
        kernel="attention.cuda_kernels:merge_kernel",
        signature={"partial": "*fp32", "partial_sum": "*fp32", "merges": "*i32", "out": "*bf16"},
        constants={"HEADS": 32, "HEAD_DIM": 128, "BLOCK_DIM": 128, "BLOCK_PARTS": 16},
    ),
]
