"""Checks that a loaded model computes the same whatever the steps into which a prompt is cut.

A description from config.json can't show that: a layer may keep a state that we do not know of, or count
positions in its own cache.
"""

from __future__ import annotations

import numpy as np
import torch

from ...kernels.attention import AttentionBatch
from ..errors import ConfigError
from .interface.input_batch import GroupInputs, InputBatch, RowStates
from .interface.model import Model
from .kv_pool import allocate_pool

PAGE_SIZE = 16
TOKENS = 12
FIRST_CHUNK = 7
TOLERANCE = {torch.float32: 1e-3}
"""the largest difference, as a share of the largest hidden state, of the median token"""
TOLERANCE_OF_16_BITS = 0.1


def check_chunks(model: Model, device: torch.device) -> None:
    """Raises ConfigError if the results depend on how prompts are cut into steps."""
    difference = _measure_difference(model, device)
    if difference is not None:
        raise ConfigError(
            f"this model gives other results if a prompt is computed in several steps: they differ by "
            f"{difference:.1%}. So it can't be served; choose another model."
        )


@torch.inference_mode()
def _measure_difference(model: Model, device: torch.device) -> float | None:
    """Computes a prompt at once, and again in two steps, the second one beside another prompt. Returns by how
    much the results differ, as a share of the largest; None if they agree."""
    spec = model.config.cache_spec
    states = [
        torch.empty((3, *state.shape), dtype=state.dtype or model.dtype, device=device)
        for state in spec.states
    ]
    kvs = allocate_pool(spec, [4] * spec.layers, PAGE_SIZE, model.dtype, device)
    tokens = torch.arange(1, TOKENS + 1, dtype=torch.int32) % model.config.vocab_size
    model.set_context(TOKENS)
    model.cover(TOKENS)
    whole = model.forward(_batch([(0, 0, tokens)], device, states), kvs)
    rest, other = (1, FIRST_CHUNK, tokens[FIRST_CHUNK:]), (2, 0, tokens.flip(0)[:FIRST_CHUNK])
    model.forward(_batch([(1, 0, tokens[:FIRST_CHUNK])], device, states), kvs)
    chunked = model.forward(_batch([other, rest], device, states), kvs)[-(TOKENS - FIRST_CHUNK) :]
    expected = whole[FIRST_CHUNK:].float()
    if not expected.isfinite().all():
        return None  # the test step after loading explains it
    differences = (chunked.float() - expected).abs().amax(1) / expected.abs().amax()
    difference = float(differences.median())
    return None if difference < TOLERANCE.get(model.dtype, TOLERANCE_OF_16_BITS) else difference


def _batch(
    rows: list[tuple[int, int, torch.Tensor]], device: torch.device, states: list[torch.Tensor]
) -> InputBatch:
    """A step of rows, each with its page, its first position and its tokens. A row's page is also the place
    of its state."""
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
        states=RowStates(states, np.array([page for page, _, _ in rows])) if states else None,
    )
