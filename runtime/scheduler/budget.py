"""How many prompt tokens a step computes and restores, from the time that steps took."""

from __future__ import annotations

FIRST_CHUNK = 128  # before anything was measured
MIN_CHUNK = 64  # with fewer tokens a step's time says little about the time of one
MAX_CHUNK = 2048
ALONE_FACTOR = 4.0  # a step that holds up no stream may take this many times as long
BASE_FACTOR = 4.0  # prompts get at least this many times what the streams' own tokens take
SIZES_PER_OCTAVE = 4  # chunks come in few sizes: libraries prepare code for each
FIRST_RESTORE = 512  # before anything was measured
MIN_RESTORE = 256
RESTORE_SHARE = 0.5  # of a step's time goes into restoring at most
MEMORY = 0.8  # weight of the past in the moving averages


class StepBudget:
    """Sizes prefill chunks so that a step with open streams takes about `step_ms`.

    A step is taken to cost a base (that of steps which only decode) plus so much for each prompt token.
    Where the base alone comes near `step_ms` (a large model), chunks would be too small to be worth
    reading the weights for; then a step takes a multiple of the base. Tokens that are restored cost what
    copying them takes; steps that do so teach nothing of computing.
    """

    def __init__(self, step_ms: float) -> None:
        self._step_ms = step_ms
        self._base_ms = 0.0
        self._token_ms: float | None = None
        self._restored_token_ms: float | None = None

    def prefill_tokens(self, decode_rows: int, restored_tokens: int = 0) -> int:
        """For a step with so many streams, and with tokens that are restored."""
        if self._token_ms is None:
            return FIRST_CHUNK
        room_ms = self._room_ms(decode_rows) - restored_tokens * (self._restored_token_ms or 0.0)
        return _round_down(max(MIN_CHUNK, min(MAX_CHUNK, int(room_ms / self._token_ms))))

    def restored_tokens(self, decode_rows: int) -> int:
        if self._restored_token_ms is None:
            return FIRST_RESTORE
        room_ms = RESTORE_SHARE * self._room_ms(decode_rows)
        return max(MIN_RESTORE, int(room_ms / self._restored_token_ms))

    def observe(self, prefill_tokens: int, elapsed_ms: float) -> None:
        """What a step computed and how long that took."""
        if not prefill_tokens:
            self._base_ms = _average(self._base_ms or None, elapsed_ms)
        elif prefill_tokens >= MIN_CHUNK:
            token_ms = max(elapsed_ms - self._base_ms, 0.1 * elapsed_ms) / prefill_tokens
            self._token_ms = _average(self._token_ms, max(token_ms, 1e-4))

    def observe_restore(self, restored_tokens: int, copying_ms: float) -> None:
        """What a step restored and how long copying it took."""
        if restored_tokens >= MIN_RESTORE:
            token_ms = max(copying_ms / restored_tokens, 1e-4)
            self._restored_token_ms = _average(self._restored_token_ms, token_ms)

    def _room_ms(self, decode_rows: int) -> float:
        room_ms = max(self._step_ms - self._base_ms, BASE_FACTOR * self._base_ms)
        return room_ms if decode_rows else max(room_ms, ALONE_FACTOR * self._step_ms)


def _round_down(tokens: int) -> int:
    step = max(1, (1 << (tokens.bit_length() - 1)) // SIZES_PER_OCTAVE)
    return tokens // step * step


def _average(past: float | None, now: float) -> float:
    return now if past is None else MEMORY * past + (1 - MEMORY) * now
