from aot_cases import AotCase, MatrixProducts

WEIGHT = {"codes": "*i8", "scales": "*fp16", "offsets": "*fp16", "factors": "*fp32"}
WORDS = {**WEIGHT, "scales": "*i32", "offsets": "*i32"}
FLOATS = {**WEIGHT, "scales": "*fp32", "offsets": "*fp32"}
SIZES = {"outputs": "i32", "inputs": "i32", "steps": "i32"}


MATRIX = {80: ("HMMA.*", 16, 8), 90: ("HGMMA.*", 16, 64), 100: ("UTCHMMA.*", 16, 64)}
"""instructions for more than 16 rows by architecture: opcode, inputs and rows (at most) of each"""


def _matrix_products(factors: int, rows: int) -> MatrixProducts | dict[int, MatrixProducts]:
    if rows <= 16:
        return MatrixProducts("HMMA.*", factors // 16 * (rows // 8))
    return {
        architecture: MatrixProducts(opcode, factors // inputs * max(1, rows // most_rows))
        for architecture, (opcode, inputs, most_rows) in MATRIX.items()
    }


def _product(
    bits: int,
    group: int,
    rows: int,
    *,
    fp8: bool = False,
    offsets: bool = False,
    whole: bool = True,
    kind: str = "bf16",
    max_spill_bytes: int = 0,
) -> AotCase:
    """A product with the tiles of `coded_cuda.Tiles`."""
    codes, few, in_float32 = "fp8" if fp8 else f"{bits}-bits", rows <= 16, kind == "fp32"
    stages, slice_ = 2 if in_float32 else 4, group if few else min(group, 64)
    steps = max(1, min(4, 128 // group)) if few else 1
    factors = steps * slice_ * (2 if bits == 4 else 1) * (2 if offsets else 1)
    return AotCase(
        name=f"product-{codes}-{group}-rows-{rows}{'-offsets' if offsets else ''}"
        f"{'' if whole else '-rest'}{'' if kind == 'bf16' else '-' + kind}",
        kernel="linear.coded_cuda:product_kernel",
        signature={
            "x": f"*{kind}",
            **(FLOATS if fp8 else WORDS),
            "bias": f"*{kind}",
            "out": "*fp32",
            "rows": "i32",
            **SIZES,
            "steps_each": "i32",
        },
        constants={
            "BITS": bits,
            "GROUP": group,
            "SLICE": slice_,
            "STEPS": steps,
            "FP8": fp8,
            "OFFSETS": offsets,
            "BIAS": False,
            "SPLIT": True,
            "BLOCK_ROWS": rows,
            "BLOCK_OUTPUTS": 32 if few else 64,
            "WHOLE": whole,
            "STAGES": stages,
        },
        num_warps=2 if few else 4,
        pipelined_loops=0 if in_float32 else 1,
        programs=5 if rows <= 8 else 4 if few else 2,
        max_spill_bytes=max_spill_bytes,
        products=None if in_float32 else _matrix_products(factors, rows),
        aligned=("outputs", "inputs", "steps"),
    )


def _few_rows(outputs: int, inputs: int, rows: int, bfloat16: bool = True, whole: bool = True) -> AotCase:
    kind = "*bf16" if bfloat16 else "*fp16"
    return AotCase(
        name=f"few-rows-{rows}-tile-{outputs}{'' if bfloat16 else '-half'}{'' if whole else '-rest'}",
        kernel="linear.few_rows_cuda:few_rows_kernel",
        signature={
            "x": "*i32",
            "weight": "*i32",
            "bias": kind,
            "out": kind,
            "outputs": "i32",
            "words": "i32",
        },
        constants={
            "ROWS": rows,
            "BFLOAT16": bfloat16,
            "BIAS": True,
            "WHOLE": whole,
            "BLOCK_OUTPUTS": outputs,
            "BLOCK_WORDS": inputs // 2,
        },
        max_shared=1 << 10,
        aligned=("outputs", "words"),
    )


def _byte_product(name: str, kind: str, fp8: bool, group: int, architecture: int, opcode: str) -> AotCase:
    """Of many rows with rounded activations: tiles of `byte_cuda.tile_rows` and 128 outputs. A warp has
    64 × 32 of them on sm_80, where an instruction multiplies 32 inputs for 16 × 8 of them."""
    instructions = (64 // 16) * (32 // 8) if architecture == 80 else 1
    rows = 64 if fp8 and architecture == 100 else 128
    return AotCase(
        name=f"byte-product-{name}-{group}-on-{architecture}",
        kernel="linear.byte_cuda:byte_product_kernel",
        signature={
            "x": kind,
            "x_scales": "*fp32",
            "codes": kind,
            "scales": "*fp32" if fp8 else "*i32",
            "factors": "*fp32",
            "bias": "*bf16",
            "out": "*bf16",
            "rows": "i32",
            "outputs": "i32",
            "groups": "i32",
        },
        constants={
            "FP8": fp8,
            "GROUP": group,
            "BIAS": True,
            "BLOCK_ROWS": rows,
            "BLOCK_OUTPUTS": 128,
            "STAGES": 3,
        },
        num_warps=rows // 16,
        pipelined_loops=1,
        products=MatrixProducts(opcode, group // 32 * instructions),
        architectures=(architecture,),
        aligned=("outputs",),
    )


def _rounding(kind: str, fp8: bool) -> AotCase:
    return AotCase(
        name=f"round-{kind}-to-{'fp8' if fp8 else 'int8'}",
        kernel="linear.byte_cuda:round_kernel",
        signature={
            "x": f"*{kind}",
            "codes": "*i8",
            "scales": "*fp32",
            "rows": "i32",
            "inputs": "i32",
            "groups": "i32",
        },
        constants={"FP8": fp8, "GROUP": 128, "BLOCK_ROWS": 16},
        max_shared=1 << 10,
        aligned=("inputs",),
    )


CASES = [
    _few_rows(4, 1024, 1),
    _few_rows(4, 1024, 4),
    _few_rows(8, 1024, 4),
    _few_rows(1, 2048, 4, whole=False),
    _few_rows(8, 1024, 4, bfloat16=False),
    *(_product(4, group, rows) for group in (32, 128) for rows in (8, 16, 64)),
    *(_product(4, 128, rows, offsets=True) for rows in (8, 64)),
    _product(4, 32, 8, offsets=True, kind="fp16", max_spill_bytes=32),
    _product(4, 64, 8, kind="fp32"),
    *(_product(8, 128, rows) for rows in (8, 32, 64)),
    _product(8, 32, 16, offsets=True),
    _product(8, 128, 8, kind="fp16"),
    *(_product(8, 128, rows, fp8=True) for rows in (8, 64)),
    _product(8, 128, 8, fp8=True, kind="fp16"),
    _product(8, 128, 16, fp8=True, whole=False),
    _byte_product("int8", "*i8", False, 128, 80, "IMMA.*"),
    _byte_product("int8", "*i8", False, 32, 90, "IGMMA.*"),
    _byte_product("fp8", "*fp8e4nv", True, 128, 90, "QGMMA.*"),
    _byte_product("fp8", "*fp8e4nv", True, 128, 100, "UTCQMMA.*"),
    _rounding("bf16", False),
    _rounding("fp16", True),
    *(
        AotCase(
            name=f"expand-{name}",
            kernel="linear.coded_cuda:expand_kernel",
            signature={**WEIGHT, "out": "*bf16", "first": "i32", **SIZES, "end": "i32"},
            constants={"BITS": bits, "GROUP": 128, "FP8": fp8, "OFFSETS": False, "BLOCK_OUTPUTS": 32},
            aligned=("outputs", "inputs", "steps"),
        )
        for name, bits, fp8 in (("4-bits", 4, False), ("fp8", 8, True))
    ),
    AotCase(
        name="product-merge",
        kernel="linear.coded_cuda:merge_kernel",
        signature={
            "partial": "*fp32",
            "factors": "*fp32",
            "bias": "*bf16",
            "out": "*bf16",
            "size": "i32",
            "outputs": "i32",
            "splits": "i32",
        },
        constants={"BIAS": False, "BLOCK": 1024},
        max_shared=0,
        aligned=("outputs",),
    ),
]
