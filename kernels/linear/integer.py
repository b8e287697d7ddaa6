"""Matrix products with weights of 4 to 8 bits and scales for groups of inputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..common import amx
from ..common.rows import take_columns
from ..common.teams import place_by_node, team_arguments
from ..common.threads import is_recording
from . import integer_cpu, integer_tiles, tile_products
from .byte_dots import TILE, VECTOR, TileFormat, available, block_layout
from .coded_weight import CPU, FACTOR_INPUTS, CodedShape, float16_factors
from .integer_cpu import AMX_BFLOAT16, AMX_BYTES, NO_AMX
from .integer_panels import GROUP, PANEL, amx_multiplies
from .rounded_rows import STEP, block_bytes

SCRATCH = 1 << 19
"""Codes of activations that are multiplied at a time, approximately: they should stay in a core's cache. AMX
gets at least those of a panel of rows."""

AMX_ROWS = {AMX_BYTES: 64, AMX_BFLOAT16: 32}
"""Products of fewer rows are computed without AMX, which would take longer."""

WIDENED = 3 << 18
"""A thread widens tiles of at most this many bytes in all, or one tile, before it multiplies them by AMX. The
widened weights should stay in its second-level cache while it reads the activations."""

MAX_ROWS = 512
"""Rows that are multiplied at a time, at most."""


def serves(shape: CodedShape) -> bool:
    """Whether a group is whole vectors of 16 inputs, and all groups have the same size."""
    if shape.has_factors and (FACTOR_INPUTS % shape.group or shape.inputs % FACTOR_INPUTS):
        return False
    is_format = shape.has_factors or shape.bits in (4, 8)
    return available() and is_format and shape.group % 16 == 0 and shape.inputs % shape.group == 0


class IntegerCpuPacker:
    """A `CodedPacker`. Scales and offsets are stored as float16 (see `float16_factors`)."""

    def __init__(
        self, shape: CodedShape, input_order: torch.Tensor | None = None, device: torch.device = CPU
    ) -> None:
        assert serves(shape) and shape.bits is not None and device.type == "cpu", shape
        self._shape, self._bits = shape, shape.bits
        self._input_order = None if input_order is None else input_order.contiguous()
        self._group = stored_group(shape.group)
        self._tables = 1 if shape.zero is not None else 2
        size, self._head, of_block = block_layout(self._bits, self._group, self._tables, shape.has_factors)
        tiles = -(-shape.outputs // TILE)
        stored = torch.empty(tiles, shape.inputs // of_block, size, dtype=torch.uint8)
        self._tiles = place_by_node(stored).zero_()
        self._factors = torch.ones(tiles * TILE)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self._tiles, self._factors

    @tensors.setter
    def tensors(self, filled: tuple[torch.Tensor, ...]) -> None:
        self._tiles, self._factors = filled

    def write(
        self,
        begin: int,
        codes: torch.Tensor,
        scales: torch.Tensor,
        offsets: torch.Tensor | None = None,
        factors: torch.Tensor | None = None,
    ) -> None:
        shape, n = self._shape, len(codes)
        assert 0 <= begin <= begin + n <= shape.outputs, f"{begin} + {n} outputs of {shape.outputs}"
        assert codes.shape == (n, shape.inputs) and codes.dtype == torch.uint8, (codes.shape, codes.dtype)
        assert scales.shape == (n, shape.groups), (scales.shape, (n, shape.groups))
        assert (offsets is None) == (shape.zero is not None) and (factors is None) != shape.has_factors
        words = codes.contiguous().view(torch.uint32).numpy()
        stored = self._tiles.view(torch.uint32).numpy()
        integer_tiles.pack_codes(stored, begin, words, self._group, self._head // 4, self._bits)
        tables = torch.stack([scales] if offsets is None else [scales, offsets]).float()
        if factors is None:
            halves = tables.repeat_interleave(shape.group // self._group, dim=2)
        else:
            halves = factors
            self._write_bytes(begin, tables, factors)
        of_outputs = float16_factors(halves)
        self._factors[begin : begin + n] = of_outputs
        heads = self._tiles[:, :, : VECTOR * self._tables].view(torch.float16)
        self._place(heads, begin, (halves / of_outputs[:, None]).half())

    def _write_bytes(self, begin: int, tables: torch.Tensor, factors: torch.Tensor) -> None:
        """Writes scales and offsets as multiples of their factors. tables: float32 [tables, n, groups]"""
        groups = FACTOR_INPUTS // self._shape.group
        of_groups = factors.repeat_interleave(groups, dim=2)
        multiples = (tables / of_groups).nan_to_num(0, 0, 0).round().to(torch.int8)
        places = self._tiles[:, :, VECTOR * self._tables : self._head].view(torch.int8)
        for index in range(groups):
            self._place(places.unflatten(2, (groups, -1))[:, :, index], begin, multiples[:, :, index::groups])

    def _place(self, places: torch.Tensor, begin: int, values: torch.Tensor) -> None:
        """Writes values of outputs [tables, n, blocks] to places [tiles, blocks, tables * TILE]."""
        at = torch.arange(begin, begin + values.shape[1])
        tables = places.unflatten(2, (self._tables, TILE))
        tables[at // TILE, :, :, at % TILE] = values.permute(1, 2, 0)

    def product(
        self, bias: torch.Tensor | None, batch_invariant: bool = False, may_round: bool = False
    ) -> IntegerCpuProduct:
        many_rows = self._many_rows(batch_invariant)
        return IntegerCpuProduct(
            self._shape, self._group, self._tiles, self._factors, bias, self._input_order, many_rows
        )

    def _many_rows(self, batch_invariant: bool) -> int:
        """Chooses how many rows are multiplied. NO_AMX and AMX_BYTES give bit-identical results, AMX_BFLOAT16
        gives others."""
        if not amx.available():
            return NO_AMX
        if amx_multiplies(self._bits, self._group, self._shape.zero):
            return AMX_BYTES
        return NO_AMX if batch_invariant or self._shape.inputs % STEP else AMX_BFLOAT16


class IntegerCpuProduct:
    """y = x wᵀ + bias, with x quantized to 8 bits by the weight's groups of inputs. Many rows may be
    computed as AMX_BFLOAT16: the weights and x are rounded to bfloat16 instead.

    The bits of a row's result do not depend on the number of threads. Without AMX_BFLOAT16 they do not depend
    on other rows.
    """

    def __init__(
        self,
        shape: CodedShape,
        group: int,
        tiles: torch.Tensor,
        factors: torch.Tensor,
        bias: torch.Tensor | None,
        input_order: torch.Tensor | None,
        many_rows: int,
    ) -> None:
        """many_rows: NO_AMX, AMX_BYTES or AMX_BFLOAT16"""
        assert shape.bits is not None
        self.shape, self._bits, self._group = shape, shape.bits, group
        self._tiles, self._factors = tiles, factors
        self._bias = None if bias is None else F.pad(bias.float(), (0, len(factors) - len(bias)))
        self.input_order = input_order
        self.kind = TileFormat(shape.bits, shape.has_factors), shape.zero is None
        """the key of its kernel"""
        self._kernel = integer_cpu.KERNELS[self.kind]
        parts = groups_of_activations(shape)
        self._sizes = (shape.outputs, shape.inputs, group, parts, shape.zero or 0)
        bias_address = 0 if self._bias is None else self._bias.data_ptr()
        self.addresses = (tiles.data_ptr(), factors.data_ptr(), bias_address)
        """of the tiles, the factors and the bias, 0 for none"""
        self.many_rows = many_rows
        self._tables = 8 * (shape.inputs // group)
        """bytes of a row's scales and sums, at most"""
        least = PANEL if many_rows == AMX_BYTES else tile_products.MAX_ROWS
        fitting = max(least, min(MAX_ROWS, SCRATCH // shape.inputs))
        self._rows = MAX_ROWS if many_rows == AMX_BFLOAT16 else fitting
        """rows that are multiplied at a time, at most, if they are not halved"""

    @property
    def nbytes(self) -> int:
        parts = (self._tiles, self._factors, self._bias, self.input_order)
        return sum(part.nbytes for part in parts if part is not None)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous() if self.input_order is None else take_columns(x, self.input_order)
        rows = len(x)
        y = torch.empty(rows, self.shape.outputs, dtype=x.dtype)
        size = self._part(rows)
        if rows <= size:
            self._multiply(x, y, rows)
            return y
        for part, results in zip(x.split(size), y.split(size), strict=True):
            self._multiply(part, results, len(part))
        return y

    def _part(self, rows: int) -> int:
        """How many rows are multiplied at a time if there are `rows` in all. The parts are nearly equal."""
        in_halves = min(MAX_ROWS, 2 * self._rows)  # a core's cache has to hold the codes of a half
        for most in (in_halves, self._rows):
            size = -(-rows // max(1, -(-rows // most)))
            if self._halves(size):
                break
        return size

    def _halves(self, rows: int) -> bool:
        """Whether two sides of threads multiply half of these rows each (see `integer_cpu.HALVED_ROWS`)."""
        if self.many_rows != NO_AMX or torch.get_num_threads() == 1:
            return False
        most_outputs = integer_cpu.OUTPUTS_OF_A_ROW * rows
        return rows >= integer_cpu.HALVED_ROWS and self.shape.outputs <= most_outputs

    def _multiply(self, x: torch.Tensor, y: torch.Tensor, count: int) -> None:
        way = self.many_rows
        if way != NO_AMX and count < AMX_ROWS[way]:
            way = NO_AMX
        if way == AMX_BFLOAT16:
            self._multiply_widened(x, y, count)
            return
        scratch, arguments = self.prepare(x, y, way)
        threads = torch.get_num_threads()
        self._kernel.run((*arguments, *team_arguments(threads)), threads)
        del scratch  # the kernel has read it

    def prepare(
        self, x: torch.Tensor, y: torch.Tensor, way: int = NO_AMX
    ) -> tuple[torch.Tensor, tuple[int, ...]]:
        """Scratch memory for all rows of x, and the arguments of the kernel (see `integer_cpu`)."""
        threads, count = torch.get_num_threads(), len(x)
        rows = count + integer_cpu.ROWS_BEYOND  # the kernel reads beyond the last row
        totals = threads * integer_cpu.MEMORY_BYTES
        inputs, tables = self.shape.inputs, self._tables
        scratch = torch.empty(VECTOR + totals + rows * (inputs + tables), dtype=torch.int8)
        memory = -(-scratch.data_ptr() // VECTOR) * VECTOR
        codes = memory + totals
        scales = codes + rows * inputs
        sums = scales + rows * tables // 2
        addresses = (x.data_ptr(), codes, scales, sums, *self.addresses, y.data_ptr(), memory)
        kind = integer_cpu.KINDS[x.dtype]
        more = (0, way, integer_cpu.MEMORY_BYTES, 2 * threads, self._halves(count), 0, 0, 0, 0, 0)
        return scratch, (0, 0, kind, count, *self._sizes, *addresses, *more)

    def _multiply_widened(self, x: torch.Tensor, y: torch.Tensor, count: int) -> None:
        threads = torch.get_num_threads()
        tiles, tile_bytes = -(-self.shape.outputs // TILE), 2 * TILE * self.shape.inputs
        some = max(1, min(WIDENED // tile_bytes, tiles // (2 * threads)))
        of_thread = integer_cpu.WIDENED_AT + some * tile_bytes
        size = VECTOR + threads * of_thread + block_bytes(count, self.shape.inputs)
        scratch = torch.empty(size, dtype=torch.int8)
        memory = -(-scratch.data_ptr() // VECTOR) * VECTOR
        blocks = memory + threads * of_thread
        addresses = (x.data_ptr(), blocks, 0, 0, *self.addresses, y.data_ptr(), memory)
        kind = integer_cpu.KINDS[x.dtype]
        more = (0, AMX_BFLOAT16, of_thread, some, *team_arguments(threads))
        self._kernel.run((0, 0, kind, count, *self._sizes, *addresses, *more), threads)

    def rows(self, ids: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        shape = self.shape
        assert is_recording() or not len(ids) or 0 <= ids.min() <= ids.max() < shape.outputs, (
            f"ids beyond {shape.outputs} outputs"
        )
        weights = torch.empty(len(ids), shape.inputs, dtype=dtype)
        order = 0 if self.input_order is None else self.input_order.data_ptr()
        addresses = (self._tiles.data_ptr(), self._factors.data_ptr(), order)
        described = shape.zero is None, self._bits, shape.has_factors
        numbers = (shape.inputs, self._group, shape.zero or 0, *described)
        results = (weights.data_ptr(), integer_cpu.KINDS[dtype])
        given = (len(ids), ids.data_ptr(), ids.element_size())
        integer_tiles.expand_rows.run((*given, *addresses, *numbers, *results), 1)
        return weights


def stored_group(group: int) -> int:
    """Inputs that share a stored scale: the largest multiple of 16 up to 128 that divides the given group."""
    return max(size for size in range(16, GROUP + 1, 16) if group % size == 0)


def groups_of_activations(shape: CodedShape) -> int:
    """Stored groups that share a scale of activations: two of 16 inputs, if there is an even number of them,
    otherwise one. With a scale for each 128 inputs a few large activations would cost more accuracy."""
    group = stored_group(shape.group)
    return 2 if group == 16 and shape.inputs // group % 2 == 0 else 1
