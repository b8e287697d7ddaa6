from aot_cases import AotCase

PROCESS = {"logits": "*fp32", "row_stride": "i32", "vocab": "i32"}
PARTS = {
    "mask_index": "*i32",
    "mask_bits": "*i32",
    "host_mask_index": "*i32",
    "host_mask_bits": "*i32",
    "banned_start": "*i32",
    "banned_ids": "*i32",
    "bias_start": "*i32",
    "bias_ids": "*i32",
    "bias_values": "*fp32",
    "penalty_entry": "*i32",
    "repetition": "*fp32",
    "presence": "*fp32",
    "frequency": "*fp32",
    "prompt_seen": "*i32",
    "output_counts": "*i32",
    "processed": "*fp32",
    "sub_maxima": "*i32",
    "raw_maxima": "*fp32",
    "raw_sums": "*fp32",
    "top_values": "*fp32",
    "top_ids": "*i32",
}
PROCESS_END = {"maxima": "*fp32", "leaders": "*i32", "nan": "*i32", "top_count": "i32"}
FILTERS = {"top_k": "*i32", "top_p": "*fp32", "min_p": "*fp32"}
FILTER = {
    "x": "*fp32",
    "row_stride": "i32",
    "vocab": "i32",
    "temperature": "*fp32",
    "maxima": "*fp32",
    "chunks": "i32",
    "sub_blocks": "i32",
    "candidates": "*i32",
    "cuts": "*i32",
}
RACE = {
    "x": "*fp32",
    "row_stride": "i32",
    "vocab": "i32",
    "temperature": "*fp32",
    "seed": "*i64",
    "position": "*i32",
    "maxima": "*fp32",
    "scores": "*fp32",
    "winners": "*i32",
}
FINISH = {
    "logits": "*fp32",
    "row_stride": "i32",
    "temperature": "*fp32",
    "maxima": "*fp32",
    "leaders": "*i32",
    "nan": "*i32",
    "top_count": "i32",
    "chunks": "i32",
    "tokens": "*i32",
    "bad": "*i32",
    "floor": "fp32",
}
RACED = {"scores": "*fp32", "winners": "*i32"}
LOGPROBS = {
    "raw_maxima": "*fp32",
    "raw_sums": "*fp32",
    "chunk_values": "*fp32",
    "chunk_ids": "*i32",
    "logprobs": "*fp32",
    "top_ids": "*i32",
    "top_logprobs": "*fp32",
}

AUTOMATA = {
    "slots": "*i32",
    "registers": "*i32",
    "tables": "*i64",
    "states": "*i32",
}


def case(
    name: str, kernel: str, signature: dict[str, str], off: dict[str, str], sizes: dict[str, int]
) -> AotCase:
    return AotCase(
        name=f"sampling-{name}",
        kernel=kernel,
        signature=signature,
        constants={**dict.fromkeys(off), **sizes},
        num_warps=16 if kernel.endswith("filter_kernel") else 8,
        max_shared=48 * 1024,
        max_spill_bytes=32,  # spilled while automata are stepped
        aligned=("row_stride",),
    )


SIZES = {"CHUNKS": 64, "SUB_BLOCKS": 2048, "TILE": 4096}
CASES = [
    case(
        "process-plain",
        "sampling.process_cuda:process_kernel",
        PROCESS | PROCESS_END,
        PARTS,
        {"CHUNK": 4096},
    ),
    case(
        "process-all",
        "sampling.process_cuda:process_kernel",
        PROCESS | PARTS | PROCESS_END,
        {},
        {"CHUNK": 4096},
    ),
    case(
        "filter-all",
        "sampling.filter_cuda:filter_kernel",
        FILTER | FILTERS | {"sub_maxima": "*i32"},
        {},
        SIZES,
    ),
    case(
        "filter-top-p",
        "sampling.filter_cuda:filter_kernel",
        FILTER | {"top_p": "*fp32"},
        {"top_k": "", "min_p": "", "sub_maxima": ""},
        SIZES,
    ),
    case(
        "race",
        "sampling.race_cuda:race_kernel",
        RACE,
        {"cuts": ""},
        {"CHUNKS": 64, "CHUNK": 4096},
    ),
    case(
        "race-filtered",
        "sampling.race_cuda:race_kernel",
        RACE | {"cuts": "*i32"},
        {},
        {"CHUNKS": 64, "CHUNK": 4096},
    ),
    case(
        "finish-greedy",
        "sampling.race_cuda:finish_kernel",
        FINISH,
        RACED | LOGPROBS | AUTOMATA,
        {"CHUNKS": 64, "TOPS": 1},
    ),
    case(
        "finish-automata",
        "sampling.race_cuda:finish_kernel",
        FINISH | RACED | AUTOMATA,
        LOGPROBS,
        {"CHUNKS": 64, "TOPS": 1},
    ),
    case(
        "finish-all",
        "sampling.race_cuda:finish_kernel",
        FINISH | RACED | LOGPROBS | AUTOMATA,
        {},
        {"CHUNKS": 64, "TOPS": 1024},
    ),
]
CASES.append(
    AotCase(
        name="automaton-mask",
        kernel="automaton.cuda:mask_kernel",
        signature={key: kind for key, kind in AUTOMATA.items() if key != "states"}
        | {
            "row_masks": "*i32",
            "words": "i32",
            "index": "*i32",
        },
        constants={"LANES": 256, "TILE": 1024},
        num_warps=8,
        max_shared=48 * 1024,
    )
)
CASES.append(
    AotCase(
        name="sampling-record",
        kernel="sampling.record_cuda:record_kernel",
        signature=dict.fromkeys(("tokens", "slots", "last_tokens", "entries", "output_counts"), "*i32")
        | {"vocab": "i32"},
        constants={},
        num_warps=1,
    )
)
