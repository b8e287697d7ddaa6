"""Each rule of sampling by itself.

Triton's interpreter is too slow for many draws; test_sampling_agreement.py compares it with these rules.
"""

import math
from typing import Any

import pytest
import torch
from arbora.kernels.sampling import LOGPROB_FLOOR, SamplingBatch
from arbora.kernels.sampling.batch import NOT_A_NUMBER, NOTHING_ALLOWED
from sampling_cases import SAMPLERS, Sampler, banned, batch, bias, mask, penalties


@pytest.fixture(params=SAMPLERS)
def sampler(request: pytest.FixtureRequest) -> Sampler:
    return SAMPLERS[request.param]


@pytest.fixture(params=["reference", "cpu"])
def fast_sampler(request: pytest.FixtureRequest) -> Sampler:
    return SAMPLERS[request.param]


def support(sampler: Sampler, logits: list[float], draws: int = 60, **parameters: Any) -> set[int]:
    """The tokens that a row samples over many seeds."""
    rows = torch.tensor([logits]).repeat(draws, 1)
    made = batch(draws, seed=list(range(draws)), **parameters)
    return set(sampler(rows, made, None).tokens.tolist())


def greedy(sampler: Sampler, logits: list[float], **parts: Any) -> int:
    return int(sampler(torch.tensor([logits]), batch(temperature=0.0, **parts), None).tokens[0])


def test_temperature_zero_takes_the_largest_logit(sampler: Sampler) -> None:
    assert greedy(sampler, [0.5, 3.0, -1.0, 2.9]) == 1


def test_ties_go_to_the_lowest_id(sampler: Sampler) -> None:
    logits = torch.zeros(1, 300)
    logits[0, [70, 140, 299]] = 5.0
    assert sampler(logits, batch(temperature=0.0), None).tokens.tolist() == [70]


def test_negative_and_positive_zero_are_equal(sampler: Sampler) -> None:
    assert greedy(sampler, [-1.0, -0.0, 0.0]) == 1


def test_a_batch_known_to_be_greedy_gives_the_same_tokens(sampler: Sampler) -> None:
    logits = torch.randn(3, 200, generator=torch.Generator().manual_seed(1))
    plain = batch(3, temperature=0.0)
    known = SamplingBatch(plain.temperature, plain.seed, plain.position, all_greedy=True)
    assert torch.equal(sampler(logits, plain, None).tokens, sampler(logits, known, None).tokens)


def test_high_temperature_reaches_every_token(fast_sampler: Sampler) -> None:
    assert support(fast_sampler, [0.0, 1.0, 2.0, 3.0], draws=100, temperature=100.0) == {0, 1, 2, 3}


def test_low_temperature_stays_with_the_largest(fast_sampler: Sampler) -> None:
    assert support(fast_sampler, [0.0, 1.0, 2.0, 3.0], temperature=0.02) == {3}


def test_top_k_keeps_exactly_k(fast_sampler: Sampler) -> None:
    assert support(fast_sampler, [1.0, 1.3, 1.1, 1.2, 1.4], top_k=2) == {1, 4}


def test_top_k_breaks_ties_at_the_boundary_by_lowest_id(fast_sampler: Sampler) -> None:
    assert support(fast_sampler, [1.0, 1.0, 2.0, 1.0, 1.0], top_k=3) == {0, 1, 2}


def test_top_k_zero_is_off(fast_sampler: Sampler) -> None:
    assert support(fast_sampler, [1.0, 1.0, 1.0], top_k=0) == {0, 1, 2}


def test_top_k_beyond_the_vocabulary_keeps_all(fast_sampler: Sampler) -> None:
    assert support(fast_sampler, [1.0, 1.0, 1.0], top_k=9) == {0, 1, 2}


def test_top_p_keeps_the_smallest_set_that_reaches_p(fast_sampler: Sampler) -> None:
    logits = [math.log(p) for p in (0.1, 0.5, 0.15, 0.25)]
    assert support(fast_sampler, logits, top_p=0.7) == {1, 3}
    assert support(fast_sampler, logits, top_p=0.8) == {1, 2, 3}


def test_top_p_breaks_ties_at_the_boundary_by_lowest_id(fast_sampler: Sampler) -> None:
    assert support(fast_sampler, [0.0, 0.0, 0.0, 0.0], top_p=0.5) == {0, 1}


def test_top_p_keeps_at_least_one_token(fast_sampler: Sampler) -> None:
    assert support(fast_sampler, [0.0, 0.1, 0.0], top_p=1e-6) == {1}


def test_top_p_applies_to_the_tokens_that_top_k_keeps(fast_sampler: Sampler) -> None:
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert support(fast_sampler, logits, top_p=0.5, top_k=2) == {0}
    assert support(fast_sampler, logits, top_p=0.5) == {0, 1}


def test_top_p_applies_to_probabilities_after_temperature(fast_sampler: Sampler) -> None:
    logits = [math.log(p) for p in (0.6, 0.4)]
    assert support(fast_sampler, logits, top_p=0.55) == {0}
    assert support(fast_sampler, logits, top_p=0.55, temperature=4.0) == {0, 1}


def test_min_p_keeps_probabilities_from_its_share_of_the_largest(fast_sampler: Sampler) -> None:
    logits = [math.log(p) for p in (0.5, 0.26, 0.24)]
    assert support(fast_sampler, logits, min_p=0.5) == {0, 1}


def test_min_p_one_keeps_the_largest_and_its_ties(fast_sampler: Sampler) -> None:
    assert support(fast_sampler, [2.0, 1.9, 2.0], min_p=1.0) == {0, 2}


def test_each_row_has_its_own_filters(fast_sampler: Sampler) -> None:
    rows = 90
    logits = torch.tensor([[0.0, 0.1, 0.2, 0.3]]).repeat(rows, 1)
    kinds = [row % 3 for row in range(rows)]
    made = batch(
        rows,
        seed=list(range(rows)),
        top_k=[(1, 0, 0)[kind] for kind in kinds],
        top_p=[(1.0, 0.3, 1.0)[kind] for kind in kinds],
    )
    tokens = fast_sampler(logits, made, None).tokens.tolist()
    drawn = [{token for token, kind in zip(tokens, kinds, strict=True) if kind == k} for k in range(3)]
    assert drawn == [{3}, {2, 3}, {0, 1, 2, 3}]


def test_a_bias_is_added_to_its_token(sampler: Sampler) -> None:
    assert greedy(sampler, [1.0, 2.0, 3.0], bias=bias({0: 2.5})) == 0
    assert greedy(sampler, [1.0, 2.0, 3.0], bias=bias({2: -1.5})) == 1


def test_banned_tokens_are_not_sampled(sampler: Sampler) -> None:
    assert greedy(sampler, [1.0, 2.0, 3.0], banned=banned([2, 0])) == 1


def test_a_bias_does_not_override_a_ban(sampler: Sampler) -> None:
    assert greedy(sampler, [1.0, 2.0], bias=bias({1: 100.0}), banned=banned([1])) == 0


def test_bias_and_bans_are_those_of_the_row(sampler: Sampler) -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]]).repeat(3, 1)
    made = batch(3, temperature=0.0, bias=bias({}, {1: 5.0}, {}), banned=banned([2], [], []))
    assert sampler(logits, made, None).tokens.tolist() == [1, 1, 2]


def test_only_the_tokens_of_a_mask_are_sampled(sampler: Sampler) -> None:
    logits = torch.arange(100.0).repeat(3, 1)
    made = batch(3, temperature=0.0, mask=mask(100, [3, 64, 31], None, [32]))
    assert sampler(logits, made, None).tokens.tolist() == [64, 99, 32]


def test_both_masks_must_allow_a_token(sampler: Sampler) -> None:
    logits = torch.arange(40.0).repeat(1, 1)
    made = batch(temperature=0.0, mask=mask(40, [3, 5, 39]), host_mask=mask(40, [1, 3, 5]))
    assert sampler(logits, made, None).tokens.tolist() == [5]


def test_masked_tokens_take_no_place_in_top_k(fast_sampler: Sampler) -> None:
    rows = 60
    logits = torch.tensor([[5.0, 4.0, 1.0, 1.0, 1.0]]).repeat(rows, 1)
    allowed = mask(5, *[[2, 3, 4]] * rows)
    made = batch(rows, seed=list(range(rows)), top_k=2, mask=allowed)
    assert set(fast_sampler(logits, made, None).tokens.tolist()) == {2, 3}


def test_repetition_divides_positive_and_multiplies_negative_logits(sampler: Sampler) -> None:
    seen = penalties(2, prompt=[0], repetition=2.0)
    assert greedy(sampler, [3.0, 1.6], penalties=seen) == 1
    assert greedy(sampler, [3.0, 1.4], penalties=seen) == 0
    assert greedy(sampler, [-1.0, -1.9], penalties=seen) == 1
    assert greedy(sampler, [-1.0, -2.1], penalties=seen) == 0


def test_repetition_counts_prompt_and_output(sampler: Sampler) -> None:
    both = penalties(3, prompt=[0], output=[1], repetition=10.0)
    assert greedy(sampler, [3.0, 2.9, 1.0], penalties=both) == 2


def test_frequency_is_subtracted_for_each_time_in_the_output(sampler: Sampler) -> None:
    thrice = penalties(2, prompt=[1, 1], output=[0, 0, 0], frequency=0.5)
    assert greedy(sampler, [2.0, 0.4], penalties=thrice) == 0
    assert greedy(sampler, [2.0, 0.6], penalties=thrice) == 1


def test_presence_is_subtracted_once_for_the_output_only(sampler: Sampler) -> None:
    thrice = penalties(3, prompt=[1], output=[0, 0, 0], presence=0.5)
    assert greedy(sampler, [2.0, 1.4, 0.0], penalties=thrice) == 0
    assert greedy(sampler, [2.0, 1.6, 0.0], penalties=thrice) == 1


def test_the_bias_comes_before_the_repetition_penalty(sampler: Sampler) -> None:
    assert greedy(sampler, [1.0, 2.1], bias=bias({0: 3.0}), penalties=penalties(2, [0], repetition=2.0)) == 1


def test_a_row_with_nan_is_flagged_and_its_neighbours_are_not(sampler: Sampler) -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]]).repeat(3, 1)
    logits[1, 0] = math.nan
    for temperature in (0.0, 1.0):
        sampled = sampler(logits, batch(3, temperature=temperature, top_k=1), 1)
        assert sampled.bad.tolist() == [0, NOT_A_NUMBER, 0]
        assert sampled.tokens.tolist() == [2, 0, 2]
        assert sampled.logprobs is not None and sampled.logprobs[1] == LOGPROB_FLOOR


def test_nan_at_a_masked_token_is_flagged_too(sampler: Sampler) -> None:
    logits = torch.tensor([[1.0, math.nan]])
    assert sampler(logits, batch(mask=mask(2, [0])), None).bad.tolist() == [NOT_A_NUMBER]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_an_allowed_token_is_flagged(sampler: Sampler, temperature: float) -> None:
    logits = torch.zeros(2, 50)
    made = batch(2, temperature=temperature, top_p=0.5, mask=mask(50, [], [7]))
    sampled = sampler(logits, made, None)
    assert sampled.bad.tolist() == [NOTHING_ALLOWED, 0]
    assert sampled.tokens.tolist() == [0, 7]


def test_an_infinite_logit_is_flagged(sampler: Sampler) -> None:
    assert sampler(torch.tensor([[0.0, math.inf]]), batch(), None).bad.tolist() == [NOTHING_ALLOWED]


def test_log_probabilities_are_of_the_raw_logits(sampler: Sampler) -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(3)) * 4
    made = batch(4, temperature=0.5, seed=[1, 2, 3, 4], top_k=3, banned=banned(*[[1]] * 4))
    sampled = sampler(logits, made, 5)
    expected = torch.log_softmax(logits, dim=-1)
    assert sampled.logprobs is not None and sampled.top_ids is not None and sampled.top_logprobs is not None
    chosen = expected.gather(1, sampled.tokens.long().unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(sampled.logprobs, chosen, atol=3e-6, rtol=0)
    values, ids = expected.topk(5)
    assert torch.equal(sampled.top_ids, ids.int())
    torch.testing.assert_close(sampled.top_logprobs, values, atol=3e-6, rtol=0)


def test_equal_top_log_probabilities_are_in_order_of_id(sampler: Sampler) -> None:
    logits = torch.zeros(1, 300)
    logits[0, 200] = 1.0
    top_ids = sampler(logits, batch(), 4).top_ids
    assert top_ids is not None and top_ids.tolist() == [[200, 0, 1, 2]]


def test_log_probabilities_have_a_floor(sampler: Sampler) -> None:
    logits = torch.tensor([[0.0, -torch.inf, -20000.0]])
    top = sampler(logits, batch(temperature=0.0), 3).top_logprobs
    assert top is not None and top.tolist() == [[0.0, LOGPROB_FLOOR, LOGPROB_FLOOR]]


def test_log_probabilities_are_computed_only_if_asked_for(sampler: Sampler) -> None:
    sampled = sampler(torch.zeros(1, 4), batch(), None)
    assert (sampled.logprobs, sampled.top_ids, sampled.top_logprobs) == (None, None, None)
    none_listed = sampler(torch.zeros(1, 4), batch(), 0)
    assert none_listed.logprobs is not None and none_listed.logprobs.tolist() == [pytest.approx(-math.log(4))]
