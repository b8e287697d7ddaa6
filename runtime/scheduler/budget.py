"""Sizes prefill chunks and restores from the measured time of steps."""

from __future__ import annotations

FIRST_CHUNK = 128  # tokens of a chunk before anything was measured
MIN_CHUNK = 16  # tokens; with fewer, a step's time says little about the time of one token
SLOW_CHUNK = 64  # tokens; a chunk of at least this size counts if it took longer per token than estimated
MAX_CHUNK = 2048  # tokens of the largest chunk
UNSTREAMED_FACTOR = 3.0  # factor of `step_ms` that a step may take while no text is streamed
ALONE_FACTOR = 7.0  # factor of `step_ms` that a step may take while no reply is decoded at all
SIZES_PER_OCTAVE = 4  # different chunk sizes per doubling; few, because libraries prepare code for each size
FIRST_TOKEN_MS = 1.0  # time of a prompt token before anything was measured
FIRST_RESTORE = 512  # tokens restored in a step before anything was measured
MIN_RESTORE = 256  # tokens that a step may always restore
RESTORE_SHARE = 0.5  # largest share of a step's time for restores
MEMORY = 0.8  # weight of the past in the moving averages


class StepBudget:
    """Sizes prefill chunks so that a step takes about `step_ms` while text is streamed.

    Otherwise steps may take longer: nobody sees the time between two tokens of a reply that is sent as a
    whole, and programs parse a value of a schema when it is complete. Larger chunks compute more tokens a
    second, and a prompt that is computed in fewer steps decodes earlier, so more rows share a step's weights.
    `decode_rows` is the number of rows that decode in a step. `streams_text` says whether a running request
    streams text that people may read as it comes.

    The cost of a step is modelled as a base (the time of steps that only decode) plus a time for each prompt
    token. Prompts get at least as much time as the base, even if a step then takes longer than `step_ms` (a
    large model): smaller chunks would not be worth reading the weights for. A few prompt tokens cost little,
    as a step reads the weights anyway. So a chunk smaller than half the budget never lowers the estimated
    time of a token. A restored token costs its copying time. Steps that restore are not
    used to measure computing.
    """

    def __init__(self, step_ms: float) -> None:
        self._step_ms = step_ms
        self._base_ms = 0.0
        self._token_ms: float | None = None
        self._chunk = FIRST_CHUNK  # size in tokens of the last chunk that `prefill_tokens` allowed
        self._restored_token_ms: float | None = None

    def prefill_tokens(self, decode_rows: int, streams_text: bool, restored_tokens: int = 0) -> int:
        """Number of prompt tokens for a step with these rows and restored tokens."""
        if self._token_ms is not None:
            restoring_ms = restored_tokens * (self._restored_token_ms or 0.0)
            left_ms = self._free_ms(decode_rows, streams_text) - restoring_ms
            self._chunk = _round_down(max(MIN_CHUNK, min(MAX_CHUNK, int(left_ms / self._token_ms))))
        return self._chunk

    def restored_tokens(self, decode_rows: int, streams_text: bool) -> int:
        """Number of tokens that a step with these rows may restore."""
        if self._restored_token_ms is None:
            return FIRST_RESTORE
        share_ms = RESTORE_SHARE * self._free_ms(decode_rows, streams_text)
        return max(MIN_RESTORE, int(share_ms / self._restored_token_ms))

    def estimate_token_s(self, decode_rows: int, streams_text: bool) -> float:
        """Seconds for each prompt token of a long prompt, in steps with these rows."""
        token_s = (FIRST_TOKEN_MS if self._token_ms is None else self._token_ms) / 1000
        if not decode_rows:
            return token_s
        return token_s * (1 + self._base_ms / max(self._free_ms(decode_rows, streams_text), 1e-3))

    @property
    def has_measured(self) -> bool:
        """Whether `estimate_token_s` is more than a guess."""
        return self._token_ms is not None

    @property
    def base_s(self) -> float:
        """Seconds of a step that only decodes; 0 before one was measured."""
        return self._base_ms / 1000

    @property
    def restored_token_s(self) -> float:
        """Seconds for each restored token; 0 before some were."""
        return (self._restored_token_ms or 0.0) / 1000

    def observe(self, prefill_tokens: int, elapsed_ms: float) -> None:
        """Learns from the time of a step that computed `prefill_tokens` prompt tokens."""
        if not prefill_tokens:
            self._base_ms = _average(self._base_ms or None, elapsed_ms)
        elif prefill_tokens >= MIN_CHUNK:
            token_ms = max(max(elapsed_ms - self._base_ms, 0.1 * elapsed_ms) / prefill_tokens, 1e-4)
            is_slow = prefill_tokens >= SLOW_CHUNK and token_ms > (self._token_ms or 0.0)
            if is_slow or prefill_tokens >= self._chunk / 2:
                self._token_ms = _average(self._token_ms, token_ms)

    def observe_restore(self, restored_tokens: int, copying_ms: float) -> None:
        """Learns from the copying time of a step that restored `restored_tokens` tokens."""
        if restored_tokens >= MIN_RESTORE:
            token_ms = max(copying_ms / restored_tokens, 1e-4)
            self._restored_token_ms = _average(self._restored_token_ms, token_ms)

    def _free_ms(self, decode_rows: int, streams_text: bool) -> float:
        """Milliseconds for prompts beside the decode rows."""
        free_ms = max(self._step_ms - self._base_ms, self._base_ms)
        if streams_text:
            return free_ms
        return max(free_ms, (UNSTREAMED_FACTOR if decode_rows else ALONE_FACTOR) * self._step_ms)


def _round_down(tokens: int) -> int:
    step = max(1, (1 << (tokens.bit_length() - 1)) // SIZES_PER_OCTAVE)
    return tokens // step * step


def _average(past: float | None, now: float) -> float:
    return now if past is None else MEMORY * past + (1 - MEMORY) * now
