"""Makes values equal on all ranks that each rank measures, or decides by its own clock, and checks others."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...errors import ConfigError
from ...messages import StepMasks, StepResult
from .ranks import Ranks


class RanksDifferError(Exception):
    """The ranks have computed different tokens, so nothing that they compute later can be trusted."""


def wait_for_all(ranks: Ranks) -> None:
    """Returns when all ranks have called it."""
    ranks.gather([0.0])


@contextmanager
def first_rank_first(ranks: Ranks) -> Iterator[None]:
    """Context that the other ranks enter when the first one has left it."""
    if ranks.rank.number:
        wait_for_all(ranks)
    yield
    if not ranks.rank.number:
        wait_for_all(ranks)


def check_gpus(ranks: Ranks, name: str) -> None:
    """Raises ConfigError unless the GPUs of all ranks have the name of this rank's GPU. Those of other kinds
    would round otherwise, and run steps in other graphs."""
    digests = [digest for (digest,) in ranks.gather([zlib.crc32(name.encode())])]
    if len(set(digests)) > 1:
        raise ConfigError(
            f"--tp {ranks.rank.total}: the ranks have different GPUs; that of rank {ranks.rank.number} is "
            f"{name}. Name GPUs of one kind in CUDA_VISIBLE_DEVICES."
        )


def find_least(ranks: Ranks, values: Sequence[int]) -> list[int]:
    """Returns, for each of the values, the smallest one of any rank."""
    return [int(min(each)) for each in zip(*ranks.gather(values), strict=True)]


def agree_on_masks(ranks: Ranks, masks: StepMasks | None) -> StepMasks | None:
    """Returns the masks, or None on all ranks if they came too late on one."""
    came = ranks.gather([masks is not None])
    return masks if min(came) == [1.0] else None


def agree_on_result(ranks: Ranks, result: StepResult) -> None:
    """Gives the result the time that the first rank has measured, by which drafts are chosen. Raises
    RanksDifferError if the ranks have sampled different tokens."""
    if ranks.rank.total == 1:
        return
    found = ranks.gather([zlib.crc32(result.counts + result.tokens), result.elapsed_ms])
    different = [number for number, (digest, _) in enumerate(found) if digest != found[0][0]]
    if different:
        raise RanksDifferError(
            f"rank {different[0]} has sampled other tokens than rank 0 in step {result.step}. Please report "
            "this with the model and the options; --tp 1 serves it without ranks."
        )
    result.elapsed_ms = found[0][1]
