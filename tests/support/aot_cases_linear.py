from aot_cases import AotCase

WEIGHT = {"codes": "*i8", "scales": "*fp16", "offsets": "*fp16", "factors": "*fp32"}
SIZES = {"outputs": "i32", "inputs": "i32", "steps": "i32"}


def _product(bits: int, group: int, rows: int, fp8: bool = False, offsets: bool = False) -> AotCase:
    kind = "fp8" if fp8 else f"{bits}-bits"
    return AotCase(
        name=f"product-{kind}-{group}-rows-{rows}{'-offsets' if offsets else ''}",
        kernel="linear.coded_cuda:product_kernel",
        signature={
            "x": "*bf16",
            **WEIGHT,
            **({"scales": "*fp32", "offsets": "*fp32"} if fp8 else {}),
            "bias": "*bf16",
            "out": "*fp32",
            "rows": "i32",
            **SIZES,
            "steps_each": "i32",
        },
        constants={
            "BITS": bits,
            "GROUP": group,
            "SLICE": group if rows == 16 else min(group, 64),
            "FP8": fp8,
            "OFFSETS": offsets,
            "BIAS": False,
            "SPLIT": True,
            "BLOCK_ROWS": rows,
            "BLOCK_OUTPUTS": 64,
        },
        num_stages=4,
        pipelined_loops=1,
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


CASES = [
    _few_rows(4, 1024, 1),
    _few_rows(4, 1024, 4),
    _few_rows(8, 1024, 4),
    _few_rows(1, 4096, 4, whole=False),
    _few_rows(8, 1024, 4, bfloat16=False),
    *(_product(4, group, rows) for group in (32, 128) for rows in (16, 64)),
    _product(4, 128, 16, offsets=True),
    *(_product(8, 128, rows) for rows in (16, 64)),
    *(_product(8, 128, rows, fp8=True) for rows in (16, 64)),
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
