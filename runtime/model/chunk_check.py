"""Checks that a loaded model computes the same whatever the steps into which a prompt is cut.

A description from config.json can't show that: a layer may keep a state that we do not know of, or count
positions in its own cache.
"""

from __future__ import annotations

import numpy as np
import torch

from ...kernels.attention import AttentionBatch
from ..errors import ConfigError
from .interface.input_batch import GroupInputs, InputBatch
from .interface.model import Model
from .kv_pool import allocate_pool

PAGE_SIZE = 16
TOKENS = 12
FIRST_CHUNK = 7
TOLERANCE = {torch.float32: 1e-3}
"""the largest difference, as a share of the largest hidden state, of the median token"""
TOLERANCE_OF_16_BITS = 0.1


@torch.inference_mode()
def check_chunks(model: Model, device: torch.device) -> None:
    """Computes a prompt at once, and again in two steps, the second one beside another prompt. Raises
    ConfigError if the results differ."""
    spec = model.config.cache_spec
    kvs = allocate_pool(spec, [4] * spec.layers, PAGE_SIZE, model.dtype, device)
    tokens = torch.arange(1, TOKENS + 1, dtype=torch.int32) % model.config.vocab_size
    model.set_context(TOKENS)
    model.cover(TOKENS)
    whole = model.forward(_batch([(0, 0, tokens)], device), kvs)
    rest, other = (1, FIRST_CHUNK, tokens[FIRST_CHUNK:]), (2, 0, tokens.flip(0)[:FIRST_CHUNK])
    model.forward(_batch([(1, 0, tokens[:FIRST_CHUNK])], device), kvs)
    chunked = model.forward(_batch([other, rest], device), kvs)[-(TOKENS - FIRST_CHUNK) :]
    expected = whole[FIRST_CHUNK:].float()
    if not expected.isfinite().all():
        return  # the test step after loading explains it
    differences = (chunked.float() - expected).abs().amax(1) / expected.abs().amax()
    difference = float(differences.median())
    if not difference < TOLERANCE.get(model.dtype, TOLERANCE_OF_16_BITS):
        raise ConfigError(
            f"this model gives other results if a prompt is computed in several steps: they differ by "
            f"{difference:.1%}. So it can't be served; choose another model."
        )


def _batch(rows: list[tuple[int, int, torch.Tensor]], device: torch.device) -> InputBatch:
    """A step of rows, each with its page, its first position and its tokens."""
    positions = torch.cat([torch.arange(start, start + len(tokens)) for _, start, tokens in rows])
    pages = torch.cat([torch.full((len(tokens),), page) for page, _, tokens in rows])
    lengths = [len(tokens) for _, _, tokens in rows]
    attention = AttentionBatch.build(
        lengths,
        [start + length for (_, start, _), length in zip(rows, lengths, strict=True)],
        [np.array([page], np.int32) for page, _, _ in rows],
        PAGE_SIZE,
        device,
    )
    return InputBatch(
        tokens=torch.cat([tokens for _, _, tokens in rows]).to(device),
        positions=positions.to(device),
        groups=(GroupInputs((pages * PAGE_SIZE + positions).to(device), attention),),
        outputs=None,
    )
