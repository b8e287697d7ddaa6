from aot_cases import AotCase

NORM = {
    "x": "*bf16",
    "residual": "*bf16",
    "weight": "*bf16",
    "out": "*bf16",
    "x_stride": "i32",
    "size": "i32",
}
CASES = [
    AotCase(
        name=f"rms_norm-{size}{'-add' if add else ''}",
        kernel="norm_triton:rms_norm_kernel",
        signature={**NORM, "eps": "fp32"},
        constants={"ADD": add, "BLOCK": size},
        num_warps=max(1, min(16, size // 512)),
        max_shared=32 * 1024,
        aligned=("x_stride", "size"),
    )
    for size in (128, 1024, 8192)
    for add in (False, True)
]
