"""Per-slot sampling state: what a batch gathers, and what recording changes."""

import numpy as np
import torch
from arbora.kernels.sampling import TokenMask, sample
from arbora.kernels.sampling.state import SamplingState, SlotSettings
from hypothesis import given, settings
from hypothesis import strategies as st

VOCAB = 50
NOTHING = np.zeros(0, np.int32)


def tokens(*ids: int) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    return np.array(ids, np.int32)


def state_with(*slots: SlotSettings) -> SamplingState:
    state = SamplingState(8, VOCAB, "cpu")
    for slot, chosen in enumerate(slots):
        state.set(slot, chosen, tokens(1, 2), NOTHING)
    return state


def test_a_batch_holds_each_slots_numbers_in_the_order_of_its_rows() -> None:
    state = state_with(
        SlotSettings(temperature=0.5, top_k=3, seed=7), SlotSettings(temperature=2.0, top_p=0.9, min_p=0.1)
    )
    batch = state.gather(tokens(1, 0))
    assert batch.temperature.tolist() == [2.0, 0.5]
    assert batch.seed.tolist() == [0, 7]
    assert batch.top_k is not None and batch.top_k.tolist() == [0, 3]
    assert batch.top_p is not None and np.allclose(batch.top_p, [0.9, 1.0])
    assert batch.min_p is not None and np.allclose(batch.min_p, [0.1, 0.0])


def test_parts_that_no_row_uses_are_left_out() -> None:
    state = state_with(
        SlotSettings(), SlotSettings(temperature=0.0, top_k=5, top_p=0.5), SlotSettings(top_k=5)
    )
    batch = state.gather(tokens(0, 1))
    parts = (batch.top_k, batch.top_p, batch.min_p, batch.bias, batch.banned, batch.penalties, batch.mask)
    assert parts == (None,) * 7
    assert not batch.all_greedy
    assert state.gather(tokens(1)).all_greedy


def test_a_seed_keeps_its_low_64_bits() -> None:
    state = state_with(SlotSettings(seed=2**64 - 1), SlotSettings(seed=-1), SlotSettings(seed=2**64 + 5))
    assert state.gather(tokens(0, 1, 2)).seed.tolist() == [-1, -1, 5]


def test_recording_moves_the_position_and_keeps_the_last_token() -> None:
    state = state_with(SlotSettings(), SlotSettings())
    state.record(tokens(1, 0), torch.tensor([40, 41], dtype=torch.int32))
    state.record(tokens(1), torch.tensor([42], dtype=torch.int32))
    assert state.gather(tokens(0, 1)).position.tolist() == [1, 2]
    assert state.last_tokens[:2].tolist() == [41, 42]


def test_a_bias_is_gathered_for_the_rows_that_have_one() -> None:
    state = state_with(
        SlotSettings(logit_bias={4: 1.5, 2: -1.0}), SlotSettings(), SlotSettings(logit_bias={3: 2.0})
    )
    bias = state.gather(tokens(2, 1, 0)).bias
    assert bias is not None
    assert bias.row_start.tolist() == [0, 1, 1, 3]
    assert bias.ids.tolist() == [3, 4, 2]
    assert bias.values.tolist() == [2.0, 1.5, -1.0]


def test_stop_ids_are_banned_until_the_output_has_min_tokens() -> None:
    state = state_with(SlotSettings(temperature=0.0, min_tokens=2, stop_ids=(49,)))
    logits = torch.arange(float(VOCAB)).unsqueeze(0)
    sampled = []
    for _ in range(4):
        chosen = sample(logits, state.gather(tokens(0))).tokens
        state.record(tokens(0), chosen)
        sampled += chosen.tolist()
    assert sampled == [48, 48, 49, 49]


def test_masks_pass_through() -> None:
    mask = TokenMask(torch.zeros(1, dtype=torch.int32), torch.zeros(1, 2, dtype=torch.int32))
    batch = state_with(SlotSettings()).gather(tokens(0), host_mask=mask)
    assert batch.host_mask is mask and batch.mask is None


def test_penalties_take_memory_for_the_slots_that_use_them_only() -> None:
    state = SamplingState(256, VOCAB, "cpu")
    for slot in range(256):
        state.set(slot, SlotSettings(frequency_penalty=1.0 if slot < 3 else 0.0), tokens(1), NOTHING)
    batch = state.gather(np.arange(256, dtype=np.int32))
    assert batch.penalties is not None
    assert len(batch.penalties.output_counts) == 4
    assert batch.penalties.entry.tolist()[3:] == [-1] * 253


def test_memory_reserved_for_penalties_does_not_move() -> None:
    state = SamplingState(9, VOCAB, "cpu")
    state.set(0, SlotSettings(presence_penalty=1.0), tokens(1), tokens(7))
    state.history.reserve(9)
    places = state.history.prompt_seen.data_ptr(), state.history.output_counts.data_ptr()
    for slot in range(1, 9):
        state.set(slot, SlotSettings(presence_penalty=1.0), tokens(1), tokens(slot))
    penalties = state.gather(np.arange(9, dtype=np.int32)).penalties
    assert penalties is not None
    assert (penalties.prompt_seen.data_ptr(), penalties.output_counts.data_ptr()) == places
    counted = penalties.output_counts[penalties.entry.long()].argmax(dim=1)
    assert counted.tolist() == [7, *range(1, 9)]


def test_a_request_leaves_nothing_to_the_next_one_in_its_slot() -> None:
    state = SamplingState(1, VOCAB, "cpu")
    for _ in range(20):
        state.set(0, SlotSettings(repetition_penalty=2.0), tokens(5), tokens(6, 6))
        state.set(0, SlotSettings(), NOTHING, NOTHING)
    state.set(0, SlotSettings(repetition_penalty=2.0), tokens(7), NOTHING)
    penalties = state.gather(tokens(0)).penalties
    assert penalties is not None and len(penalties.output_counts) == 4
    entry = int(penalties.entry[0])
    assert penalties.output_counts[entry].sum() == 0
    assert penalties.prompt_seen[entry].tolist() == [1 << 7, 0]


settings_with_penalties = st.builds(
    SlotSettings,
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 99),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
)


@settings(max_examples=40, deadline=None)
@given(settings_with_penalties, st.lists(st.integers(0, VOCAB - 1), max_size=5), st.integers(0, 6))
def test_a_retracted_slot_continues_as_if_it_had_not_stopped(
    chosen: SlotSettings, prompt: list[int], stop_at: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 1, VOCAB, generator=generator)
    state = SamplingState(2, VOCAB, "cpu")
    state.set(0, chosen, tokens(*prompt), NOTHING)
    output: list[int] = []
    resumed: list[int] = []
    for step in range(8):
        if step == stop_at:
            state.set(1, chosen, tokens(*prompt), tokens(*output))
        for slot, so_far in ((0, output), (1, resumed)):
            if slot == 1 and step < stop_at:
                continue
            sampled = sample(logits[step], state.gather(tokens(slot))).tokens
            state.record(tokens(slot), sampled)
            so_far += sampled.tolist()
    assert resumed == output[stop_at:]
