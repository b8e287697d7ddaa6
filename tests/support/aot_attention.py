"""All variants of the attention kernel that the server may compile in half precision, and what is expected of
each: matrix instructions in the main loop, blocks copied ahead, no spills in loops, programs at a time."""

import random
from itertools import combinations, product
from typing import NamedTuple, TypeAlias

from aot_cases import SHARED, AotCase, MatrixProducts
from arbora.kernels.attention.cuda_tiles import CHUNK, GROUP, PROGRAMS, SINGLE, Tiles, generation, pad

QUERIES = {"decode": SINGLE, "group": GROUP, "chunk": CHUNK}
VALUES = (
    ("decode", "group", "chunk"),
    (80, 90, 100),
    ("bf16", "fp16"),
    (64, 96, 128, 256),
    (1, 4, 5, 7, 8),
)
PAGE_SIZES, STORED, REACHES, CAPS = (1, 16), (None, "int8", "fp8"), (None, "window", "chunk"), (False, True)
PROPERTIES = (*VALUES, PAGE_SIZES, STORED, REACHES, CAPS)
"""the values of each field of a `Variant`"""
DECIDING = ("kind", "architecture", "head_dim", "stored", "reach", "capped")
"""the fields on which the tiles and the code depend most"""
Pair: TypeAlias = tuple[tuple[int, object], tuple[int, object]]
"""two fields of a variant, by their numbers, and their values"""
CANDIDATES = 40
"""variants to choose the next one of a covering set from"""
ATTEND = {
    "items": "*i32",
    "tables": "*i32",
    "places": "*i32",
    "sinks": "*fp32",
    "q_stride": "i32",
    "slots": "i32",
    "scale_log2": "fp32",
    "softcap_log2": "fp32",
    "reach": "i32",
}


class Variant(NamedTuple):
    kind: str
    architecture: int
    """90 is sm_90"""
    dtype: str
    head_dim: int
    repeat: int
    """query heads for each KV head"""
    page_size: int
    stored: str | None = None
    """the cells, if they are scaled"""
    reach: str | None = None
    """window or chunk, if keys are hidden"""
    capped: bool = False
    """whether scores have a soft cap and heads have sinks"""

    @property
    def name(self) -> str:
        more = [part for part in (self.stored, self.reach, "capped" if self.capped else None) if part]
        sizes = [f"{self.head_dim}", self.dtype, f"repeat-{self.repeat}", f"pages-of-{self.page_size}"]
        return "-".join(["attend", self.kind, *sizes, *more])

    @property
    def tiles(self) -> Tiles:
        tiles = Tiles.choose(QUERIES[self.kind], self.repeat, self.head_dim, 2, self.architecture)
        return tiles.of_scaled_cells() if self.stored else tiles


def variants() -> list[Variant]:
    """Every combination of plain cells, and those that may differ for scaled cells, hidden keys and caps."""
    plain = [Variant(*values) for values in product(*VALUES, PAGE_SIZES)]
    chosen = [variant for variant in plain if variant.repeat == 4 and variant.page_size == 16]
    scaled = [variant._replace(stored=stored) for variant in chosen for stored in STORED[1:]]
    reaching = [
        variant._replace(reach=reach, capped=capped)
        for variant in chosen
        for reach, capped in product(REACHES, CAPS)
        if variant.dtype == "bf16" and (reach or capped)
    ]
    return [*plain, *scaled, *reaching]


def covering() -> list[Variant]:
    """A few variants that contain the pairs of `covered_pairs`."""
    source = random.Random(0)
    missing = covered_pairs()
    chosen: list[Variant] = []
    while missing:
        wanted = dict(min(missing, key=str))
        candidates = [
            Variant(*(wanted.get(at, source.choice(of)) for at, of in enumerate(PROPERTIES)))  # type: ignore[arg-type]
            for _ in range(CANDIDATES)
        ]
        best = max(candidates, key=lambda variant: len(missing & pairs(variant)))
        missing -= pairs(best)
        chosen.append(best)
    return chosen


def covered_pairs() -> set[Pair]:
    """Every value of one deciding field with every value of another, and every kind with every value of any
    field."""
    places = [[(at, value) for value in of] for at, of in enumerate(PROPERTIES)]
    fields = combinations(zip(Variant._fields, places, strict=True), 2)
    covered = [(a, b) for (one, a), (two, b) in fields if one == "kind" or {one, two} <= set(DECIDING)]
    return {pair for two_places in covered for pair in product(*two_places)}


def pairs(variant: Variant) -> set[Pair]:
    """The values of the variant's fields, two by two."""
    return set(combinations(enumerate(variant), 2))


def attention_case(variant: Variant, stages: int = 3) -> AotCase:
    _, architecture, dtype, head_dim, repeat, page_size, stored, reach, capped = variant
    tiles = variant.tiles
    return AotCase(
        name=variant.name,
        kernel="attention.cuda_kernels:attend_kernel",
        signature={
            "q": f"*{dtype}",
            "kv": "*i8" if stored else f"*{dtype}",
            "scales": "*fp32" if stored else f"*{dtype}",
            "out": f"*{dtype}",
            "partial": "*fp32",
            "partial_sum": "*fp32",
            **ATTEND,
        },
        constants={
            "KV_HEADS": 8,
            "REPEAT": repeat,
            "HEAD_DIM": head_dim,
            "CELL": head_dim + 4 if stored else head_dim,
            "PAGE_SIZE": page_size,
            "BLOCK_QUERIES": tiles.queries,
            "BLOCK_KEYS": tiles.keys,
            "BLOCK_DIM": 1 << (head_dim - 1).bit_length(),
            "COLUMNS": 8,
            "SCALED": stored is not None,
            "FP8": stored == "fp8",
            "WINDOW": reach == "window",
            "CHUNK": reach == "chunk",
            "SOFTCAP": capped,
            "SINKS": capped,
        },
        architectures=(architecture,),
        num_warps=tiles.warps,
        num_stages=stages,
        max_shared=SHARED[architecture],
        pipelined_loops=0 if stages == 2 else 3 if reach else 2,
        programs=_programs(variant) if stages == 3 else 1,
        products=_products(tiles, pad(head_dim), architecture),
        # Stored before the loops and loaded after them.
        max_spill_bytes=32 if head_dim == 256 and stored and reach else 16,
        aligned=("q_stride", "slots"),
    )


def _programs(variant: Variant) -> int:
    """The programs at a time that the planner assumes; scaled cells, masks and caps may cost a third."""
    programs = PROGRAMS[variant.tiles.queries, pad(variant.head_dim)][generation(variant.architecture)]
    return max(1, programs * 2 // 3) if variant.stored or variant.reach or variant.capped else programs


def _products(tiles: Tiles, dims: int, architecture: int) -> MatrixProducts:
    """The products of a turn: queries by keys, and weights by values."""
    if tiles.queries >= GROUP and generation(architecture):
        opcode = r"HGMMA\S*" if architecture < 100 else r"UTC\w*MMA\S*"
        return MatrixProducts(opcode, (dims + tiles.keys) // 16)  # of 64 or 128 queries, 16 terms
    steps = (
        tiles.queries // 16 * tiles.keys // 8 * dims // 16
    )  # of 16 queries, 8 keys or dimensions, 16 terms
    # Warps that have all queries compute the scores of eight keys each, some of them the same ones.
    different = tiles.warps if tiles.queries // 16 >= tiles.warps else min(tiles.warps, tiles.keys // 8)
    return MatrixProducts(r"HMMA\S*", steps // different + steps // tiles.warps)
