from aot_cases import AotCase

KINDS = {"bf16": (64, 64), "fp32": (32, 32)}
"""by dtype: outputs of a program, and inputs that it multiplies at a time"""


def _product(kind: str, rows: int, gathers: bool, whole: bool = True) -> AotCase:
    outputs, inputs = KINDS[kind]
    return AotCase(
        name=f"experts-{kind}-rows-{rows}{'-gathered' if gathers else ''}{'' if whole else '-rest'}",
        kernel="experts.cuda:grouped_product_kernel",
        signature={
            "x": f"*{kind}",
            "tokens": "*i64",
            "starts": "*i32",
            "weight": f"*{kind}",
            "bias": f"*{kind}",
            "out": f"*{kind}",
            **dict.fromkeys(("rows", "blocks", "experts", "outputs", "inputs"), "i32"),
        },
        constants={
            "GATHERS": gathers,
            "BIAS": True,
            "WHOLE": whole,
            "EXPERTS": 128,
            "BLOCK_ROWS": rows,
            "BLOCK_OUTPUTS": outputs,
            "BLOCK_INPUTS": inputs,
            "STAGES": 3,
        },
        pipelined_loops=1 if whole and kind == "bf16" else 0,
        aligned=("experts", "outputs", "inputs") if whole else (),
    )


CASES = [
    _product("bf16", 16, gathers=True),
    _product("bf16", 64, gathers=False),
    _product("bf16", 32, gathers=True, whole=False),
    _product("fp32", 16, gathers=True),
    AotCase(
        name="experts-gate",
        kernel="experts.cuda:gate_kernel",
        signature={"gate_up": "*bf16", "out": "*bf16", "width": "i32", "alpha": "fp32", "limit": "fp32"},
        constants={"BLOCK": 1024},
        max_shared=0,
        aligned=("width",),
    ),
]
