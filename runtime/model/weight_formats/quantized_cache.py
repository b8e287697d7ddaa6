"""Quantized copies of checkpoints, kept on disk so that only the first start needs to quantize."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError

from ...byte_sizes import in_units
from ...cache_directory import cache_directory, made_at_once
from ...checkpoint_json import config_text
from ...config import QuantizeMethod
from ...errors import ConfigError
from ...logs import ProgressLine
from .checkpoint import Checkpoint
from .quantization_config import WeightFormats, load_weight_formats
from .quantized_checkpoint import write_quantized
from .weight_format import ChooseFormat, FloatFormat, Projection

VERSION = 2
"""version of the quantization method; copies of other versions are not used"""
MAX_BYTES = 64 << 30
"""limit in bytes for all copies; the least recently used ones are removed first"""
UNFINISHED = ".part-"
ABANDONED_S = 24 * 3600.0
"""age in seconds of an unfinished copy whose process must have been killed"""
log = logging.getLogger(__name__)


def open_quantized_copy(
    model: Path,
    checkpoint: Checkpoint,
    formats: WeightFormats,
    projections: Sequence[Projection],
    method: QuantizeMethod,
    check: Callable[[Checkpoint, ChooseFormat], object],
) -> tuple[Checkpoint, WeightFormats]:
    """Opens the quantized copy of a checkpoint in 16 or 32 bits; makes it if needed.

    check: raises ConfigError for a checkpoint that is not one of this model. Raises ConfigError itself for a
    checkpoint that is already quantized.
    """
    for each in projections:
        if not isinstance(formats.choose(each), FloatFormat):
            named = checkpoint.files[0] if checkpoint.gguf is not None else model
            raise ConfigError(
                f"--quantize {method}: {named} is already quantized ({formats.method}). Leave the option "
                "out, or name a checkpoint in 16 or 32 bits."
            )
    target = cache_directory("quantized") / _key(model, checkpoint, method)
    found = _open(target, check)
    if found is None:
        shutil.rmtree(target, ignore_errors=True)
        _make(target, model, checkpoint, projections, method)
        found = _open(target, check)
        assert found is not None, f"{target} was just written"
        log.info("the quantized weights take %s", _size(found[0]))
    else:
        log.info("quantized to %s before: %s of weights are in %s", method, _size(found[0]), target)
    with suppress(OSError):
        os.utime(target)
    _remove_oldest(target)
    return found


def _open(
    target: Path, check: Callable[[Checkpoint, ChooseFormat], object]
) -> tuple[Checkpoint, WeightFormats] | None:
    """The copy, or None if there is no complete one."""
    if not target.is_dir():
        return None
    try:
        checkpoint = Checkpoint(target)
        formats = load_weight_formats(target, checkpoint.names)
        check(checkpoint, formats.choose)
    except ConfigError as error:
        log.warning("the quantized copy is broken and will be made again: %s", error)
        return None
    return checkpoint, formats


def _make(
    target: Path,
    model: Path,
    checkpoint: Checkpoint,
    projections: Sequence[Projection],
    method: QuantizeMethod,
) -> None:
    begin, progress = time.monotonic(), ProgressLine()
    log.info("quantizing to %s; the next start will find the result in %s", method, target)
    try:
        with made_at_once(target, UNFINISHED) as scratch:
            write_quantized(scratch, model, checkpoint, projections, method, progress.show)
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"--quantize {method}: the quantized copy can't be written to {target.parent} ({error}). Free "
            "some disk space, or set XDG_CACHE_HOME to a directory with more."
        ) from None
    finally:
        progress.end()
    log.info("quantized in %.1f s", time.monotonic() - begin)


def _size(checkpoint: Checkpoint) -> str:
    return in_units(sum(file.stat().st_size for file in checkpoint.files))


def _key(model: Path, checkpoint: Checkpoint, method: QuantizeMethod) -> str:
    paths = [path.resolve() for path in checkpoint.files]
    files = [(str(path), (found := path.stat()).st_size, found.st_mtime_ns) for path in paths]
    return hashlib.sha256(repr((VERSION, method, files, config_text(model))).encode()).hexdigest()[:24]


def _remove_oldest(used: Path) -> None:
    with suppress(OSError):
        now, total = time.time(), 0
        copies = sorted(used.parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in copies:
            age = now - path.stat().st_mtime
            if path.name.startswith(UNFINISHED):
                remove = age > ABANDONED_S
            else:
                total += sum(file.stat().st_size for file in path.iterdir())
                remove = total > MAX_BYTES and path != used
            if remove:
                shutil.rmtree(path, ignore_errors=True)
