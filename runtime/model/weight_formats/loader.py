"""Loads the decoder's projections from a checkpoint in any format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby

import torch
import torch.nn.functional as F

from ....kernels.common.rows import take_rows
from ....kernels.linear import CodedProduct, Linear, Strips, pack_strips
from ...errors import ConfigError
from ..ranks import ONE_RANK, Rank, Ranks
from .checkpoint import Checkpoint
from .cutting import cut_inputs, cut_outputs
from .expand import expand_into
from .packed_copy import PackedCopy
from .packing import Packing, Take, find_packing, pack
from .weight_format import (
    FLOATS,
    GET_FILE_AGAIN,
    ChooseFormat,
    CodedRows,
    CodedWeight,
    Projection,
    Split,
    TensorError,
    TensorSpec,
    is_finite,
)


def projection_tensors(projection: Projection, choose: ChooseFormat) -> dict[str, TensorSpec]:
    """The projection's tensors in a checkpoint, by name."""
    described = choose(projection).tensors(projection)
    if projection.biased:
        described = described | {"bias": TensorSpec(((projection.outputs,),), tuple(FLOATS))}
    return {f"{projection.name}.{name}": spec for name, spec in described.items()}


EmbeddingRows = Callable[[torch.Tensor], torch.Tensor]
"""returns the embedding rows [n, inputs] of token ids int32 [n]"""


@dataclass(frozen=True)
class ProjectionLoader:
    """Loads a rank's part of projections from a checkpoint, which was checked to have their tensors.
    batch_invariant: see `Linear.pack`."""

    checkpoint: Checkpoint
    choose: ChooseFormat
    dtype: torch.dtype
    device: torch.device
    batch_invariant: bool
    packed: PackedCopy = field(default_factory=PackedCopy)
    ranks: Ranks = ONE_RANK

    @property
    def rank(self) -> Rank:
        return self.ranks.rank

    def load_linear(self, *projections: Projection) -> Linear:
        """Loads the product of projections with the same input, and concatenates their outputs.

        Neighbours that are stored in the same way become one matrix product.
        """
        runs = groupby(projections, lambda each: self._find_packing(each))
        return Linear.joined([self._load_product(packing, list(run)) for packing, run in runs])

    def load_rows_and_head(
        self, projection: Projection, split: Split | None = None
    ) -> tuple[EmbeddingRows, Linear]:
        """Loads the embedding and the head tied to it. The matrix is stored once for both, unless a library
        stores the head's copy in a layout of its own, or several ranks divide the head.

        split: how they divide it
        """
        if self.rank.total > 1:
            return self.load_rows(projection), self.load_linear(projection._replace(split=split))
        packing = self._find_packing(projection)
        if packing is not None:
            product = self._pack(packing, [projection])
            return partial(embed_quantized, product, self.dtype), Linear.quantized(product)
        if Linear.reads_parts(self.device, self.dtype):
            head = self._expand([projection], None)
            rows = head.stored_rows()
            assert rows is not None
            return rows, head
        self.find_sizes(projection)
        weight = self.load_weight(projection)
        return partial(embed, weight), Linear.pack(weight, None, self.batch_invariant)

    def load_rows(self, projection: Projection) -> EmbeddingRows:
        packing = self._find_packing(projection)
        if packing is not None:
            return partial(embed_quantized, self._pack(packing, [projection]), self.dtype)
        if not Linear.reads_parts(self.device, self.dtype):
            return partial(embed, self.load_weight(projection))
        (weight,) = self._take([projection], "weight")(lambda: [self.load_weight(projection)])
        return partial(embed, weight)

    def _load_product(self, packing: Packing | None, projections: Sequence[Projection]) -> Linear:
        if packing is not None:
            return Linear.quantized(self._pack(packing, projections))
        return self._expand(projections, self.load_bias(projections))

    def _expand(self, projections: Sequence[Projection], bias: torch.Tensor | None) -> Linear:
        if Linear.reads_parts(self.device, self.dtype):
            take = self._take(projections, "strips")
            (strips,) = take(lambda: [pack_strips(self._read_parts(projections)).values])
            sizes = Strips(strips, *self.find_part_size(*projections))
            return Linear.of_strips(sizes, bias, self.batch_invariant)
        self.find_sizes(*projections)
        return Linear.pack(self.load_weight(*projections), bias, self.batch_invariant)

    def _take(self, projections: Sequence[Projection], what: str) -> Take:
        is_part = self.rank.total > 1 and projections[0].split is not None
        names = " ".join(each.name for each in projections)
        return partial(self.packed.take, f"{names} {'part of ' if is_part else ''}{what}")

    def _read_parts(self, projections: Sequence[Projection]) -> Sequence[torch.Tensor]:
        """The projections' weights, mapped from the checkpoint's files if they are stored in the decoder's
        dtype, so that no other copy is made of them than the product's own."""
        stored = [self._read(each) for each in projections]
        mapped = [each for each in stored if isinstance(each, torch.Tensor) and each.dtype == self.dtype]
        return mapped if len(mapped) == len(stored) else [self.load_weight(*projections)]

    def _pack(self, packing: Packing, projections: Sequence[Projection]) -> CodedProduct:
        weights = [(self.find_part_size(each)[0], partial(self._read_codes, each)) for each in projections]
        (_, inputs), bias = self.find_part_size(*projections), self.load_bias(projections)
        take = self._take(projections, "codes")
        return pack(packing, inputs, weights, bias, self.device, self.batch_invariant, take)

    def is_packed(self, projection: Projection) -> bool:
        """Whether the device multiplies by the projection's codes."""
        return self._find_packing(projection) is not None

    def _find_packing(self, projection: Projection) -> Packing | None:
        """How the device's product stores the projection; None if the device has none for its format."""

        def find() -> Packing | None:
            packing = find_packing(self._read(projection), *self.find_part_size(projection), self.device)
            if packing is None and self.rank.total > 1:
                self._check_cut(projection)
            return packing

        return self.packed.choose(projection.name, find)

    def _read_codes(self, projection: Projection) -> CodedWeight:
        weight = self._read(projection)
        assert isinstance(weight, CodedWeight)
        return weight

    def _check_cut(self, projection: Projection) -> None:
        """Raises ConfigError if the device has a product for the codes of the whole projection, but none for
        those of this rank, which would take more memory than the whole."""
        whole = find_packing(self._read_whole(projection), projection.outputs, projection.inputs, self.device)
        if whole is not None:
            _, inputs = self.find_part_size(projection)
            raise ConfigError(
                f"--tp {self.rank.total}: {projection.name} has groups of {whole.group} inputs"
                + (" in an order of their own (act-order)" if whole.order is not None else "")
                + f", and a rank's {inputs} of {projection.inputs} inputs are not whole "
                "groups. Lower --tp, or use a checkpoint in another format."
            )

    def load_bias(self, projections: Sequence[Projection]) -> torch.Tensor | None:
        """The bias of this rank's parts; None if there is none, or if the first rank adds it."""
        split = projections[0].split
        if not projections[0].biased or (self.rank.number and split is not None and split.along == "inputs"):
            return None
        whole = self.load_vector(*(f"{each.name}.bias" for each in projections))
        if self.rank.total == 1:
            return whole
        parts = torch.split(whole, [each.outputs for each in projections])
        found = []
        for part, projection in zip(parts, projections, strict=True):
            runs = self._find_runs(projection, "outputs")
            found += [part] if runs is None else [part[run.start : run.stop] for run in runs]
        return torch.cat(found)

    def find_part_size(self, *projections: Projection) -> tuple[int, int]:
        """The outputs of this rank's parts, together, and their inputs."""
        outputs = sum(
            each.outputs if (runs := self._find_runs(each, "outputs")) is None else sum(map(len, runs))
            for each in projections
        )
        inputs = self._find_runs(projections[0], "inputs")
        return outputs, projections[0].inputs if inputs is None else len(inputs[0])

    def _find_runs(self, projection: Projection, along: str) -> list[range] | None:
        """The runs of outputs or inputs that this rank has; None: all of them."""
        split = projection.split
        if self.rank.total == 1 or split is None or split.along != along:
            return None
        runs, begin = [], 0
        for run in split.runs:
            part = self.rank.take(*run)
            runs.append(range(begin + part.start, begin + part.stop))
            begin += run.units * run.size
        return runs

    def find_sizes(self, *projections: Projection) -> None:
        """Finds the sizes of `load_linear`'s product before the weights are read, because the trial takes
        memory."""
        if self.batch_invariant:
            is_biased = projections[0].biased
            Linear.find_sizes(*self.find_part_size(*projections), self.dtype, self.device, is_biased)

    def load_weight(self, *projections: Projection) -> torch.Tensor:
        """Loads the projections' weights, concatenated along the outputs."""
        sizes = [self.find_part_size(each)[0] for each in projections]
        joined = torch.empty(self.find_part_size(*projections), dtype=self.dtype, device=self.device)
        for part, projection in zip(torch.split(joined, sizes), projections, strict=True):
            expand_into(part, self._read(projection))
        return joined

    def load_vector(self, *names: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Loads the named vectors, concatenated, by default in the dtype of activations. Raises ConfigError
        for values that are NaN or infinite."""
        wanted = dtype or self.dtype

        def read() -> list[torch.Tensor]:
            self.checkpoint.check_finite(names)
            return [torch.cat([self.checkpoint.read(name).to(self.device, wanted) for name in names])]

        (vector,) = self.packed.take(f"{' '.join(names)} {wanted}", read)
        return vector

    def _read(self, projection: Projection) -> torch.Tensor | CodedWeight:
        """Reads this rank's part of a projection's weight. It and its `rows` raise ConfigError for values
        that can't be used."""
        weight = self._read_whole(projection)
        outputs, inputs = (self._find_runs(projection, along) for along in ("outputs", "inputs"))
        if outputs is not None:
            return cut_outputs(weight, outputs, projection.outputs)
        return weight if inputs is None else cut_inputs(weight, inputs[0], projection.inputs)

    def _read_whole(self, projection: Projection) -> torch.Tensor | CodedWeight:
        weight_format = self.choose(projection)
        names = {name: f"{projection.name}.{name}" for name in weight_format.tensors(projection)}
        stored = {
            name: self.checkpoint.read(full) for name, full in names.items() if full in self.checkpoint.names
        }
        with self._name_errors(projection):
            weight = weight_format.read(stored, projection.outputs, projection.inputs)
        if isinstance(weight, torch.Tensor):
            return weight
        return replace(weight, rows=self._name_errors(projection)(_check_codes(weight)))

    @contextmanager
    def _name_errors(self, projection: Projection) -> Iterator[None]:
        """Turns a TensorError into a ConfigError that names the tensor and its file."""
        try:
            yield
        except TensorError as error:
            label = self.checkpoint.label(f"{projection.name}.{error.part}")
            raise ConfigError(f"{label} {error.problem}.") from None


def _check_codes(weight: CodedWeight) -> Callable[[slice], CodedRows]:
    """Wraps `weight.rows` so that it raises TensorError for scales and offsets that are NaN or infinite."""

    def rows(piece: slice) -> CodedRows:
        decoded = weight.rows(piece)
        if not all(part is None or is_finite(part) for part in (decoded.scales, decoded.offsets)):
            raise TensorError(
                weight.scale_part,
                f"has scales that are NaN or infinite. {GET_FILE_AGAIN}, or quantize the model again",
            )
        return decoded

    return rows


def embed(weight: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return F.embedding(ids, weight) if weight.is_cuda else take_rows(weight, ids)


def embed_quantized(product: CodedProduct, dtype: torch.dtype, ids: torch.Tensor) -> torch.Tensor:
    return product.rows(ids, dtype)
