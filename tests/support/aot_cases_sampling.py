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
DRAFTS = {"draft_offsets": "*i32", "drafts": "*i32"}
PROCESS_END = {"maxima": "*fp32", "leaders": "*i32", "nan": "*i32", "top_count": "i32"}
X = {"x": "*fp32", "row_stride": "i32", "vocab": "i32"}
MASK = {"mask_index": "*i32", "mask_bits": "*i32"}
LISTS = {"bounds": "*i32", "weights": "*i64", "lengths": "*i32"}
BOUND = (
    X
    | LISTS
    | {
        "ranges": "*fp32",
        "temperature": "*fp32",
        "top_k": "*i32",
        "top_p": "*fp32",
        "min_p": "*fp32",
        "maxima": "*fp32",
        "chunks": "i32",
        "sub_maxima": "*i32",
        "sub_blocks": "i32",
    }
)
WEIGH = X | {
    "temperature": "*fp32",
    "maxima": "*fp32",
    "chunks": "i32",
    "bounds": "*i32",
    "ranges": "*fp32",
    "weights": "*i64",
}
BOUNDARY = {
    "temperature": "*fp32",
    "top_p": "*fp32",
    "maxima": "*fp32",
    "chunks": "i32",
    "bounds": "*i32",
    "ranges": "*fp32",
    "weights": "*i64",
    "targets": "*i64",
}
GATHER = X | {
    "maxima": "*fp32",
    "chunks": "i32",
    "bounds": "*i32",
    "lengths": "*i32",
    "listed": "*i32",
}
CUT = {
    "bounds": "*i32",
    "targets": "*i64",
    "lengths": "*i32",
    "vocab": "i32",
    "temperature": "*fp32",
    "top_k": "*i32",
    "top_p": "*fp32",
    "maxima": "*fp32",
    "chunks": "i32",
    "listed": "*i32",
    "cuts": "*i32",
}
HALF = {"x": "*bf16"}
RACE = X | {
    "temperature": "*fp32",
    "seed": "*i64",
    "position": "*i32",
    "maxima": "*fp32",
    "leaders": "*i32",
    "chunks": "i32",
    "scores": "*fp32",
    "winners": "*i32",
}
FILTERED = dict.fromkeys(("bounds", "lengths", "listed", "cuts"), "*i32")
FINISH = {
    "logits": "*fp32",
    "row_stride": "i32",
    "temperature": "*fp32",
    "maxima": "*fp32",
    "leaders": "*i32",
    "nan": "*i32",
    "top_count": "i32",
    "chunks": "i32",
    "parts": "i32",
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
    "stepped": "*i32",
    "states": "*i32",
}


def case(
    name: str,
    kernel: str,
    signature: dict[str, str],
    off: dict[str, str],
    sizes: dict[str, int],
    num_warps: int = 8,
) -> AotCase:
    return AotCase(
        name=f"sampling-{name}",
        kernel=kernel,
        signature=signature,
        constants={**dict.fromkeys(off), **sizes},
        num_warps=num_warps,
        max_shared=48 * 1024,
        max_spill_bytes=32,  # spilled while automata are stepped
        aligned=("row_stride",) if "row_stride" in signature else (),
    )


BUCKETS = {"CHUNKS": 64, "BUCKETS": 1024}
STRETCH = {"CHUNK": 4096, "STRETCH": 2048}
RACED_AT_ONCE = {"CHUNKS": 64, **STRETCH, "TILE": 256}
WEIGHED = {**BUCKETS, "STRETCH": 2048}
SAMPLED = {"SUB_BLOCKS": 2048, "SAMPLES": 2048}
CASES = [
    case(
        "process-plain",
        "sampling.process_cuda:process_kernel",
        PROCESS | PROCESS_END,
        PARTS | DRAFTS,
        {"CHUNK": 4096},
    ),
    case(
        "process-all",
        "sampling.process_cuda:process_kernel",
        PROCESS | PARTS | PROCESS_END,
        DRAFTS,
        {"CHUNK": 4096},
    ),
    case(
        "process-drafted",
        "sampling.process_cuda:process_kernel",
        PROCESS | PARTS | DRAFTS | PROCESS_END,
        {},
        {"CHUNK": 4096},
    ),
    case(
        "process-half",
        "sampling.process_cuda:process_kernel",
        PROCESS | MASK | {"logits": "*bf16", "sub_maxima": "*i32"} | PROCESS_END,
        {name: "" for name in (*PARTS, *DRAFTS) if name not in (*MASK, "sub_maxima")},
        {"CHUNK": 4096},
    ),
    case("bound", "sampling.filter_cuda:bound_kernel", BOUND, MASK, BUCKETS | SAMPLED),
    case("bound-half", "sampling.filter_cuda:bound_kernel", BOUND | MASK | HALF, {}, BUCKETS | SAMPLED),
    case("weigh", "sampling.filter_cuda:weigh_kernel", WEIGH, MASK, WEIGHED),
    case("weigh-half", "sampling.filter_cuda:weigh_kernel", WEIGH | MASK | HALF, {}, WEIGHED),
    case("boundary", "sampling.filter_cuda:boundary_kernel", BOUNDARY, {}, BUCKETS),
    case("gather", "sampling.filter_cuda:gather_kernel", GATHER | MASK | HALF, {}, STRETCH, num_warps=4),
    case("cut", "sampling.cut_cuda:cut_kernel", CUT, {}, {"CHUNKS": 64, "TILE": 512}, num_warps=4),
    case("race", "sampling.race_cuda:race_kernel", RACE, MASK | FILTERED, RACED_AT_ONCE, num_warps=4),
    case(
        "race-filtered",
        "sampling.race_cuda:race_kernel",
        RACE | MASK | HALF | FILTERED,
        {},
        RACED_AT_ONCE,
        num_warps=4,
    ),
    case(
        "finish-greedy",
        "sampling.race_cuda:finish_kernel",
        FINISH,
        RACED | LOGPROBS | AUTOMATA,
        {"CHUNKS": 64, "PARTS": 128, "TOPS": 1},
    ),
    case(
        "finish-automata",
        "sampling.race_cuda:finish_kernel",
        FINISH | RACED | AUTOMATA,
        LOGPROBS,
        {"CHUNKS": 64, "PARTS": 128, "TOPS": 1},
    ),
    case(
        "finish-all",
        "sampling.race_cuda:finish_kernel",
        FINISH | RACED | LOGPROBS | AUTOMATA,
        {},
        {"CHUNKS": 64, "PARTS": 128, "TOPS": 1024},
    ),
]
ROWS = {"slots": "*i32", "registers": "*i32", "tables": "*i64", "row_masks": "*i32", "words": "i32"}
AUTOMATON: dict[str, tuple[dict[str, str], dict[str, int]]] = {
    "copy": (ROWS, {"TILE": 1024}),
    "flip": (ROWS, {"LANES": 256}),
    "decide": (ROWS, {"LANES": 256}),
    "keep": ({"slots": "*i32", "stepped": "*i32", "registers": "*i32"}, {}),
    "ahead": (
        dict.fromkeys(("slots", "offsets", "drafts", "registers", "ahead"), "*i32") | {"tables": "*i64"},
        {},
    ),
}
CASES += [
    AotCase(
        name=f"automaton-{name}",
        kernel=f"automaton.cuda:{name}_kernel",
        signature=signature,
        constants=sizes,
        num_warps={"copy": 4, "keep": 1, "ahead": 1}.get(name, 8),
        max_shared=48 * 1024,
    )
    for name, (signature, sizes) in AUTOMATON.items()
]
RECORD = dict.fromkeys(("tokens", "slots", "last_tokens", "entries", "output_counts"), "*i32") | {
    "vocab": "i32"
}
DRAFTED = dict.fromkeys(("bad", "offsets", "drafts", "ahead", "registers"), "*i32")
CASES += [
    AotCase(
        name=f"sampling-{name}",
        kernel="sampling.record_cuda:record_kernel",
        signature=signature,
        constants=constants,
        num_warps=1,
    )
    for name, signature, constants in (
        ("record", RECORD, dict.fromkeys(DRAFTED)),
        ("record-drafted", RECORD | DRAFTED, {}),
    )
]
