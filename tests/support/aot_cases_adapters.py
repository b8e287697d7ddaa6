from aot_cases import AotCase

SIZES = ("count", "step", "inputs", "outputs", "width")

CASES = [
    AotCase(
        name=f"grouped_product-{'up' if add else 'down'}-{parts}-{dtype}",
        kernel="adapters.cuda:grouped_product_kernel",
        signature={
            "rows": "*i32",
            "entries": "*i64",
            "ends": "*i64",
            "x": "*fp32" if add else f"*{dtype}",
            "y": f"*{dtype}" if add else "*fp32",
            **dict.fromkeys(SIZES, "i32"),
        },
        constants={
            "PARTS": parts,
            "ADD": add,
            "RANK": 0,
            "MATRIX": 2 if add else 1,
            "SCALES": 3,
            "BLOCK_ROWS": 16,
            "BLOCK_OUTPUTS": 64 if add else 16,
            "BLOCK_INPUTS": 16 if add else 128,
        },
        aligned=("inputs", "outputs", "width"),
    )
    for add in (False, True)
    for parts in (1, 3)
    for dtype in ("bf16", "fp32")
]
