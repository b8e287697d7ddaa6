"""Cuts a rank's part out of a weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from ....kernels.linear import FACTOR_INPUTS
from .expand import ALIGNMENT
from .weight_format import CodedRows, CodedWeight, Groups


def cut_outputs(
    weight: torch.Tensor | CodedWeight, runs: Sequence[range], outputs: int
) -> torch.Tensor | CodedWeight:
    """Returns some runs of a weight's outputs, one after the other. outputs: the number of all outputs"""
    if isinstance(weight, torch.Tensor):
        parts = [weight[run.start : run.stop] for run in runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
    read = weight.rows

    def rows(piece: slice) -> CodedRows:
        found = [_read_rows(read, run, outputs) for run in _find_rows(runs, piece)]
        return found[0] if len(found) == 1 else _join(found)

    return replace(weight, rows=rows)


def cut_inputs(weight: torch.Tensor | CodedWeight, run: range, inputs: int) -> torch.Tensor | CodedWeight:
    """Returns a run of a weight's inputs. inputs: the number of all inputs

    If an end of the run divides a group, all groups are divided into smaller ones of one size, which keep
    the scale of their group.
    """
    if isinstance(weight, torch.Tensor):
        return weight[:, run.start : run.stop]
    read, size, count = weight.rows, weight.groups.size, len(run)
    inside = slice(run.start, run.stop)
    if weight.groups.index is not None:

        def cut_codes(piece: slice) -> CodedRows:
            rows = read(piece)
            return rows._replace(codes=rows.codes[:, inside], factors=None)

        return replace(
            weight,
            groups=Groups(size, weight.groups.index[inside]),
            rows=cut_codes,
            has_factors=False,
        )
    smaller = count if size >= inputs else math.gcd(size, run.start, count)
    has_factors = weight.has_factors and not (run.start % FACTOR_INPUTS or count % FACTOR_INPUTS)
    of_factors = slice(run.start // FACTOR_INPUTS, run.stop // FACTOR_INPUTS)

    def cut_groups(values: torch.Tensor) -> torch.Tensor:
        if size >= inputs:
            return values
        first = run.start // size
        some = values[:, first : -(-run.stop // size)].repeat_interleave(size // smaller, dim=1)
        before = (run.start - first * size) // smaller
        return some[:, before : before + count // smaller]

    def rows(piece: slice) -> CodedRows:
        whole = read(piece)
        return CodedRows(
            whole.codes[:, inside],
            cut_groups(whole.scales),
            cut_groups(whole.zeros) if isinstance(whole.zeros, torch.Tensor) else whole.zeros,
            None if whole.offsets is None else cut_groups(whole.offsets),
            whole.factors[:, :, of_factors] if whole.factors is not None and has_factors else None,
        )

    return replace(weight, groups=Groups(smaller, None), rows=rows, has_factors=has_factors)


def _find_rows(runs: Sequence[range], piece: slice) -> Iterator[range]:
    """Yields the runs of a whole weight's outputs that are the outputs `piece` of its part."""
    before = 0
    for run in runs:
        begin, end = max(piece.start - before, 0), min(piece.stop - before, len(run))
        if begin < end:
            yield run[begin:end]
        before += len(run)


def _read_rows(read: Callable[[slice], CodedRows], run: range, outputs: int) -> CodedRows:
    """Reads a run of outputs, which may begin anywhere, by reading the aligned run around it."""
    begin = run.start // ALIGNMENT * ALIGNMENT
    rows = read(slice(begin, min(-(-run.stop // ALIGNMENT) * ALIGNMENT, outputs)))
    inside = slice(run.start - begin, run.stop - begin)

    def cut(values: torch.Tensor) -> torch.Tensor:
        return values[inside] if len(values) == len(rows.codes) else values

    return CodedRows(
        rows.codes[inside],
        cut(rows.scales),
        cut(rows.zeros) if isinstance(rows.zeros, torch.Tensor) else rows.zeros,
        None if rows.offsets is None else cut(rows.offsets),
        None if rows.factors is None else rows.factors[:, inside],
    )


def _join(parts: Sequence[CodedRows]) -> CodedRows:
    def join(values: Sequence[torch.Tensor]) -> torch.Tensor:
        spread = [each.expand(len(part.codes), -1) for each, part in zip(values, parts, strict=True)]
        return torch.cat(spread)

    first = parts[0]
    zeros = [part.zeros for part in parts if isinstance(part.zeros, torch.Tensor)]
    offsets = [part.offsets for part in parts if part.offsets is not None]
    factors = [part.factors for part in parts if part.factors is not None]
    return CodedRows(
        torch.cat([part.codes for part in parts]),
        join([part.scales for part in parts]),
        join(zeros) if zeros else first.zeros,
        join(offsets) if offsets else None,
        torch.cat(factors, dim=1) if factors else None,
    )
