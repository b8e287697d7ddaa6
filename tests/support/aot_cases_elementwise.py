from aot_cases import AotCase

NORM = {"x": "*bf16", "residual": "*bf16", "out": "*bf16", "size": "i32", "multiplier": "fp32", "eps": "fp32"}
NORM_WEIGHTS = ("weight", "own_weight")
ROTARY = {"q": "*bf16", "k": "*bf16", "v": "*bf16", "cos_sin": "*fp32", "positions": "*i64", "places": "*i64"}
ROTARY_CACHE = {"q_norm": "*fp32", "k_norm": "*fp32"}
ROTARY_STRIDES = {
    "q_stride": "i32",
    "k_stride": "i32",
    "v_stride": "i32",
    "place_count": "i32",
    "eps": "fp32",
}
DEPENDENT = {"DEPENDENT": {80: False, 90: True, 100: True}}
"""whether the kernel waits for the one before itself, which needs Hopper or later"""

CASES = [
    AotCase(
        name="feed",
        kernel="common.feed_cuda:feed_kernel",
        signature={
            "ids": "*i32",
            "slots": "*i32",
            "last_tokens": "*i32",
            "tokens": "*i32",
            "token_count": "i32",
            "places": "*i64",
            "pages": "*i32",
            "tables": "*i32",
            "page_count": "i32",
        },
        constants={"BLOCK": 128},
        max_shared=0,
    ),
    *(
        AotCase(
            name=f"rms_norm-{size}{add}",
            kernel="elementwise.cuda:rms_norm_kernel",
            signature={**NORM, **dict.fromkeys(NORM_WEIGHTS, "*fp32" if add == "-own" else "*bf16")},
            constants={"ADD": bool(add), "NORMAL": add == "-own", "ROUNDS": add != "-own", "BLOCK": size},
            constants_by_architecture=DEPENDENT,
            num_warps=max(1, min(16, size // 512)),
            max_shared=1024,
            aligned=("size",),
        )
        for size in (1024, 8192)
        for add in ("", "-add", "-own")
    ),
    *(
        AotCase(
            name=f"{'gelu' if gelu else 'silu'}_and_mul",
            kernel="elementwise.cuda:activate_and_mul_kernel",
            signature={"gate_up": "*bf16", "out": "*bf16", "stride": "i32", "width": "i32"},
            constants={"GELU": gelu, "BLOCK": 1024},
            constants_by_architecture=DEPENDENT,
            max_shared=0,
            aligned=("stride", "width"),
        )
        for gelu in (False, True)
    ),
    AotCase(
        name="scale_and_cap",
        kernel="elementwise.cuda:scale_and_cap_kernel",
        signature={"x": "*bf16", "out": "*fp32", "size": "i32", "factor": "fp32", "cap": "fp32"},
        constants={"CAPPED": True, "BLOCK": 1024},
        max_shared=0,
        aligned=("size",),
    ),
    *(
        AotCase(
            name=f"rotary_write_kv-{head_dim}-{half}{'-normal' if normal else ''}{stored and f'-{stored}'}",
            kernel="rotary.cuda:rotary_write_kv_kernel",
            signature={
                **ROTARY,
                "kv": "*i8" if stored else "*bf16",
                "scales": "*fp32" if stored else "*bf16",
                **ROTARY_CACHE,
                **ROTARY_STRIDES,
            },
            constants={
                "HEADS": 16,
                "KV_HEADS": 8,
                "HEAD_DIM": head_dim,
                "CELL": head_dim + 4 if stored else head_dim,
                "HALF": half,
                "BLOCK_HALF": 1 << (half - 1).bit_length(),
                "BLOCK_DIM": 1 << (head_dim - 1).bit_length(),
                "NORMAL": normal,
                "SCALED": bool(stored),
                "FP8": stored == "fp8",
            },
            constants_by_architecture=DEPENDENT,
            num_warps=1,
            max_shared=0,
            aligned=("q_stride", "k_stride", "v_stride", "place_count"),
        )
        for head_dim, half in ((128, 64), (80, 40), (256, 32))
        for normal in (False, True)
        for stored in ("", "int8", "fp8")
    ),
    AotCase(
        name="copy_pages",
        kernel="pages.cuda:copy_pages_kernel",
        signature={
            "like": "*i32",
            "addresses": "*i64",
            "move_count": "i32",
            "layers": "i32",
            "planes": "i32",
            "pages": "i32",
            "page_words": "i32",
        },
        constants={"BLOCK": 1024},
        max_shared=0,
        aligned=("page_words",),
    ),
    *(
        AotCase(
            name=f"{'save' if save else 'load'}_pages",
            kernel="pages.cuda:move_pages_kernel",
            signature={
                "memory": "*i32",
                "addresses": "*i64",
                "move_count": "i32",
                "all_layers": "i32",
                "first": "i32",
                "layers": "i32",
                "planes": "i32",
                "pages": "i32",
                "page_words": "i32",
                "place_words": "i32",
            },
            constants={"SAVE": save, "PIECES": 4, "WORDS": 1024},
            num_warps=8,
            max_shared=0,
            aligned=("page_words", "place_words"),
        )
        for save in (True, False)
    ),
]
