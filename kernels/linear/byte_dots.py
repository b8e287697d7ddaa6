# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Products of 8-bit activations with weights of 4 or 8 bits, 32 outputs at a time.

A tile holds the weights of 32 outputs as one stream of 64-byte vectors. For each group of inputs: the scales
of the outputs (float16), their offsets (float16, only if the format has them), then the codes. A 32-bit lane
of a vector of codes belongs to one output and holds its codes of 4 inputs. 8 bits: a vector for outputs 0–15,
then one for 16–31. 4 bits: one vector, with outputs 0–15 in the low halves of its bytes.
"""

from functools import cache

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

LANES = 16
TILE = 2 * LANES
"""outputs of a tile"""
VECTOR = 64  # bytes

_I32 = ir.IntType(32)
_BYTES = ir.VectorType(ir.IntType(8), VECTOR)
_WORDS = ir.VectorType(_I32, LANES)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_HALVES = ir.VectorType(ir.HalfType(), LANES)


@cache
def _features() -> frozenset[str]:
    """The features of the processor that numba compiles for."""
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return frozenset(name[1:] for name in features.split(",") if name.startswith("+"))


def _dot_width() -> int:
    """Bits of the widest vector whose bytes the processor multiplies and adds in one instruction, or 0."""
    features = _features()
    if "avx512vnni" in features:
        return 512
    return 256 if "avxvnni" in features else 0


def tile_products(rows: int):
    """The function that adds the products of `rows` rows with some groups of a tile.

    codes: the tile, as a pointer to what holds 4 codes: uint16 for 4 bits, uint32 for 8; x: the codes of
    activations, `x_row` bytes from one row to the next; steps: a quarter of a group's inputs; scales: of
    activations, float32 [rows, groups], `row_groups` from one row to the next; sums [rows, groups] of a
    group's activation codes: float32, times their scale, if the tile has offsets; otherwise int32, times
    -zero; out: float32 [rows, 32], added to.

    The sum of a group is exact, and the groups are added in order, so a row's result depends on nothing else.
    """

    @intrinsic
    def multiply(typing, groups, steps, codes, x, x_row, scales, sums, row_groups, out):
        def generate(context, builder, signature, arguments):
            bits, offsets = codes.dtype.bitwidth // 4, sums.dtype == types.float32
            _TileProducts(builder, rows, bits, offsets, *arguments).emit()
            return context.get_dummy_value()

        size, floats, bytes_ = types.int64, types.CPointer(types.float32), types.CPointer(types.int8)
        return types.void(size, size, codes, bytes_, size, floats, sums, size, floats), generate

    return multiply


class _TileProducts:
    def __init__(
        self, builder, rows, bits, offsets, groups, steps, codes, x, x_row, scales, sums, row_groups, out
    ) -> None:
        self._builder = builder
        self._rows, self._bits, self._offsets = rows, bits, offsets
        self._groups, self._steps = groups, steps
        self._codes = builder.bitcast(codes, ir.IntType(8).as_pointer())
        self._x, self._x_row = x, x_row
        self._scales, self._sums, self._row_groups = scales, sums, row_groups
        self._out = out

    def emit(self) -> None:
        builder = self._builder
        step_bytes = _size(VECTOR * self._bits // 4)
        head = _size(2 * VECTOR if self._offsets else VECTOR)
        group_bytes = builder.add(head, builder.mul(self._steps, step_bytes))
        places = [
            builder.gep(self._out, [_size(row * TILE + half * LANES)])
            for row in range(self._rows)
            for half in range(2)
        ]
        totals = [cgutils.alloca_once_value(builder, _read(builder, place, _FLOATS)) for place in places]
        ints = [cgutils.alloca_once(builder, _WORDS) for _ in places]
        with cgutils.for_range(builder, self._groups) as loop:
            group = builder.gep(self._codes, [builder.mul(loop.index, group_bytes)])
            self._start(ints, loop.index)
            x = builder.gep(self._x, [builder.mul(loop.index, builder.mul(self._steps, _size(4)))])
            with cgutils.for_range(builder, self._steps) as step:
                codes = builder.gep(group, [builder.add(head, builder.mul(step.index, step_bytes))])
                self._add_dots(ints, codes, builder.gep(x, [builder.mul(step.index, _size(4))]))
            self._scale(totals, ints, group, loop.index)
        for total, place in zip(totals, places, strict=True):
            _write(builder, builder.load(total), place)

    def _start(self, ints: list[ir.Value], group: ir.Value) -> None:
        """Set the integer sums of a group."""
        for row in range(self._rows):
            start = ir.Constant(_WORDS, None)
            if not self._offsets:
                word = self._builder.load(self._of_row(self._sums, row, group))
                start = _splat(self._builder, word, _WORDS)
            for total in ints[2 * row : 2 * row + 2]:
                self._builder.store(start, total)

    def _add_dots(self, ints: list[ir.Value], codes: ir.Value, x: ir.Value) -> None:
        builder = self._builder
        weights = self._weights(codes)
        for row in range(self._rows):
            place = builder.gep(x, [builder.mul(self._x_row, _size(row))])
            activations = _splat(builder, _read(builder, place, _I32), _WORDS)
            for half, weight in enumerate(weights):
                total = ints[2 * row + half]
                builder.store(_dot(builder, builder.load(total), weight, activations), total)

    def _weights(self, codes: ir.Value) -> list[ir.Value]:
        """The codes of 4 inputs, for both halves of the tile."""
        builder = self._builder
        if self._bits == 8:
            return [_read(builder, builder.gep(codes, [_size(half * VECTOR)]), _WORDS) for half in range(2)]
        both, mask = _read(builder, codes, _WORDS), ir.Constant(_WORDS, [0x0F0F0F0F] * LANES)
        shifted = builder.lshr(both, ir.Constant(_WORDS, [4] * LANES))
        return [builder.and_(both, mask), builder.and_(shifted, mask)]

    def _scale(self, totals: list[ir.Value], ints: list[ir.Value], group: ir.Value, index: ir.Value) -> None:
        """Add the sums of a group to the results, in float32."""
        builder = self._builder
        scales, offsets = self._halves(group, 0), self._halves(group, 1) if self._offsets else []
        for row in range(self._rows):
            scale = _splat(builder, builder.load(self._of_row(self._scales, row, index)), _FLOATS)
            for half in range(2):
                total = totals[2 * row + half]
                dots = builder.sitofp(builder.load(ints[2 * row + half]), _FLOATS)
                value = _fma(builder, dots, builder.fmul(scales[half], scale), builder.load(total))
                if self._offsets:
                    part = _splat(builder, builder.load(self._of_row(self._sums, row, index)), _FLOATS)
                    value = _fma(builder, offsets[half], part, value)
                builder.store(value, total)

    def _halves(self, group: ir.Value, vector: int) -> list[ir.Value]:
        """The 32 float16 of a vector as two vectors of float32."""
        places = [self._builder.gep(group, [_size(vector * VECTOR + half * 2 * LANES)]) for half in range(2)]
        return [self._builder.fpext(_read(self._builder, place, _HALVES), _FLOATS) for place in places]

    def _of_row(self, table: ir.Value, row: int, group: ir.Value) -> ir.Value:
        start = self._builder.mul(self._row_groups, _size(row))
        return self._builder.gep(table, [self._builder.add(start, group)])


def _dot(builder: ir.IRBuilder, total: ir.Value, codes: ir.Value, activations: ir.Value) -> ir.Value:
    """Adds to each lane the 4 products of its unsigned codes and its signed activations."""
    width = _dot_width()
    if width == 0:
        return _dot_of_pairs(builder, total, codes, activations)
    kind = ir.VectorType(_I32, width // 32)
    name = f"llvm.x86.avx512.vpdpbusd.{width}"
    dot = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
    parts = [_split(builder, value, width // 32) for value in (total, codes, activations)]
    return _join(builder, [builder.call(dot, part) for part in zip(*parts, strict=True)])


def _dot_of_pairs(builder: ir.IRBuilder, total: ir.Value, codes: ir.Value, activations: ir.Value) -> ir.Value:
    """`_dot` from products of 16-bit integers whose neighbours are added (`vpmaddwd` on AVX2)."""
    shorts = ir.VectorType(ir.IntType(16), 2 * LANES)
    eight = ir.Constant(shorts, [8] * (2 * LANES))
    code_pairs, activation_pairs = builder.bitcast(codes, shorts), builder.bitcast(activations, shorts)
    even = builder.ashr(builder.shl(activation_pairs, eight), eight)
    low = builder.and_(code_pairs, ir.Constant(shorts, [0xFF] * (2 * LANES)))
    for one, other in ((low, even), (builder.lshr(code_pairs, eight), builder.ashr(activation_pairs, eight))):
        wide = ir.VectorType(_I32, 2 * LANES)
        products = builder.mul(builder.sext(one, wide), builder.sext(other, wide))
        total = builder.add(
            total, builder.add(*(_every_second(builder, products, start) for start in (0, 1)))
        )
    return total


def _every_second(builder: ir.IRBuilder, value: ir.Value, start: int) -> ir.Value:
    return builder.shuffle_vector(value, value, ir.Constant(_WORDS, list(range(start, 2 * LANES, 2))))


def _split(builder: ir.IRBuilder, value: ir.Value, size: int) -> list[ir.Value]:
    if size == LANES:
        return [value]
    indices = [list(range(start, start + size)) for start in range(0, LANES, size)]
    return [
        builder.shuffle_vector(value, value, ir.Constant(ir.VectorType(_I32, size), each)) for each in indices
    ]


def _join(builder: ir.IRBuilder, parts: list[ir.Value]) -> ir.Value:
    if len(parts) == 1:
        return parts[0]
    return builder.shuffle_vector(*parts, ir.Constant(_WORDS, list(range(LANES))))


def _fma(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    return builder.call(
        cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32"), [a, b, c]
    )


def _read(builder: ir.IRBuilder, place: ir.Value, kind: ir.Type) -> ir.Value:
    value = builder.load(builder.bitcast(place, kind.as_pointer()))
    value.align = 2
    return value


def _write(builder: ir.IRBuilder, value: ir.Value, place: ir.Value) -> None:
    builder.store(value, builder.bitcast(place, value.type.as_pointer())).align = 4


def _splat(builder: ir.IRBuilder, value: ir.Value, kind: ir.VectorType) -> ir.Value:
    single = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(single, single, ir.Constant(_WORDS, None))


def _size(value: int) -> ir.Constant:
    return ir.Constant(ir.IntType(64), value)
