"""Rows that sample several tokens after drafts, against rows that sample them one by one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from arbora.runtime.messages import RowGroup, StepResult
from arbora.runtime.sampling_params import SamplingParams
from checkpoints import WINDOWED, random_model, save_model
from drafted_steps import (
    CONSTRAINED,
    KINDS,
    PAGE,
    PROMPTS,
    REPEATING,
    Guess,
    Token,
    decode,
    draft,
    half_right,
    read_tokens,
    right,
    start_driver,
    state_of,
    wrong,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from step_driver import FILTERED, GREEDY, PENALISED, StepDriver, packed, unpacked

TOKENS, DRAFTS = 30, 5
FIELDS: dict[str, dict[str, Any]] = {"plain": {}, "windowed": WINDOWED, "with NaN": {}}
NAN_TOKEN = 255  # in no prompt of the first slot
guesses = pytest.mark.parametrize("guess", [right, wrong, half_right])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One of them has an embedding that is NaN."""
    models = {name: random_model("qwen3", **given) for name, given in FIELDS.items()}
    with torch.no_grad():
        models["with NaN"].get_input_embeddings().get_parameter("weight")[NAN_TOKEN] = float("nan")
    return {name: save_model(model, tmp_path_factory.mktemp("model")) for name, model in models.items()}


@guesses
@pytest.mark.parametrize("eager", [False, True])
def test_rows_of_all_kinds_sample_the_same_with_drafts(
    models: dict[str, Path], guess: Guess, eager: bool
) -> None:
    slots = range(len(KINDS))
    plain = start_driver(models["plain"], KINDS, enforce_eager=eager)
    expected = decode(plain, slots, TOKENS)
    driver = start_driver(models["plain"], KINDS, DRAFTS, enforce_eager=eager)
    drafter = draft(driver, expected, guess)
    assert decode(driver, slots, TOKENS, 1 + DRAFTS) == expected
    assert drafter.drafted > 100
    assert (drafter.accepted == 0) == (guess is wrong)
    for one, other in zip(state_of(driver, len(KINDS)), state_of(plain, len(KINDS)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@guesses
def test_windows_hide_the_same_tokens_from_drafts(models: dict[str, Path], guess: Guess) -> None:
    expected = decode(start_driver(models["windowed"], KINDS[:3]), range(3), TOKENS)
    driver = start_driver(models["windowed"], KINDS[:3], DRAFTS)
    draft(driver, expected, guess)
    assert decode(driver, range(3), TOKENS, 1 + DRAFTS) == expected


def in_group(model: Path, speculate: int = 0) -> StepDriver:
    """Three slots whose prompts begin on the same pages."""
    driver = start_driver(model, [GREEDY], speculate)
    for slot, params in enumerate([GREEDY, FILTERED, PENALISED], 1):
        driver.start(slot, params, prompt=packed(PROMPTS[1]))
        if slot > 1:
            driver.share(slot, 1, 5 * PAGE)
        driver.run([driver.row(slot, [*PROMPTS[1][driver.lengths[slot] :], slot])])
    return driver


@guesses
def test_grouped_rows_sample_the_same_with_drafts(models: dict[str, Path], guess: Guess) -> None:
    slots, groups = [1, 2, 3, 0], [RowGroup(first_row=0, rows=3, shared_tokens=5 * PAGE)]
    expected = decode(in_group(models["plain"]), slots, TOKENS, groups=groups)
    driver = in_group(models["plain"], DRAFTS)
    draft(driver, expected, guess)
    assert decode(driver, slots, TOKENS, 1 + DRAFTS, groups) == expected


def test_a_draft_that_the_grammar_forbids_is_cut_before_it_is_computed(models: dict[str, Path]) -> None:
    expected = decode(start_driver(models["plain"], [CONSTRAINED]), [0], TOKENS)
    driver = start_driver(models["plain"], [CONSTRAINED], DRAFTS)
    drafter = draft(driver, expected, lambda tokens: [*tokens[:1], 0, *tokens[2:]])
    sizes: list[int] = []
    propose = driver.runner._propose

    def note_size(plan: Any) -> Any:
        drafts = propose(plan)
        sizes.append(0 if drafts is None else len(drafts.tokens))
        return drafts

    driver.runner._propose = note_size  # type: ignore[method-assign]
    assert decode(driver, [0], TOKENS, 1 + DRAFTS) == expected
    assert drafter.accepted > 0
    assert max(sizes) == 1


def test_chunks_and_rows_without_drafts_share_steps_with_drafts(models: dict[str, Path]) -> None:
    kinds = [GREEDY, FILTERED, REPEATING]
    plain, driver = start_driver(models["plain"], kinds), start_driver(models["plain"], kinds, DRAFTS)
    alone = decode(plain, [0, 1, 2], TOKENS)
    plain.start(3, FILTERED)
    [prompted] = read_tokens(plain.run([plain.row(3, PROMPTS[3])]), [3])[3]
    draft(driver, {0: alone[0]}, right)
    driver.start(3, FILTERED)
    rows = [
        driver.row(1),
        driver.row(3, PROMPTS[3][:9], samples=0),
        driver.row(0, samples=1 + DRAFTS),
        driver.row(2),
    ]
    first = read_tokens(driver.run(rows), [1, 3, 0, 2])
    assert first == {1: alone[1][:1], 3: [], 0: alone[0][: 1 + DRAFTS], 2: alone[2][:1]}
    rows = [driver.row(3, PROMPTS[3][9:]), driver.row(2, samples=3), driver.row(1)]
    second = read_tokens(driver.run(rows), [3, 2, 1])
    assert second == {3: [prompted], 2: alone[2][1:2], 1: alone[1][1:2]}


def run_chunks(driver: StepDriver, samples: int) -> StepResult:
    """Runs prompts whose last tokens are a chunk that drafts may follow. One wants log-probabilities of its
    tokens, and gets no drafts."""
    rows = []
    for slot, params in enumerate(KINDS[:5]):
        prompt = PROMPTS[slot][::-1]
        setup = {"banned_tokens": packed([7, 9]), "grammar": 1 if params is CONSTRAINED else None}
        targets = packed(prompt[3:]) if slot == 3 else b""
        params = msgspec.structs.replace(params, prompt_logprobs=2 if targets else None)
        driver.start(slot, params, prompt=packed(prompt), **setup)
        driver.run([driver.row(slot, prompt[:2], samples=0)])
        rows.append(driver.row(slot, prompt[2:] or [5], samples=samples, targets=targets))
    return driver.run(rows)


@guesses
@pytest.mark.parametrize("model", ["plain", "windowed"])
def test_chunks_sample_the_same_with_drafts(models: dict[str, Path], model: str, guess: Guess) -> None:
    """Tokens that a grammar forces come in such chunks."""
    slots, last = range(5), TOKENS - DRAFTS
    plain = start_driver(models[model], KINDS[:5])
    chunk = run_chunks(plain, 1)
    expected = read_tokens(chunk, slots)
    for slot, tokens in decode(plain, slots, TOKENS).items():
        expected[slot] += tokens
    driver = start_driver(models[model], KINDS[:5], DRAFTS)
    drafter = draft(driver, expected, guess)
    drafted = run_chunks(driver, 1 + DRAFTS)
    assert drafted.prompt_logprobs == chunk.prompt_logprobs and len(chunk.prompt_logprobs) == 1
    found = read_tokens(drafted, slots)
    longest = 1 + (DRAFTS if guess is right else DRAFTS // 2 if guess is half_right else 0)
    assert [len(found[slot]) for slot in slots if slot not in (3, 4)] == [longest] * 3
    assert len(found[3]) == 1
    drafter.known = {slot: len(tokens) for slot, tokens in found.items()}
    for slot, tokens in decode(driver, slots, last, 1 + DRAFTS).items():
        assert (found[slot] + tokens)[:last] == expected[slot][:last]


def test_a_chunk_whose_draft_leads_to_nan_is_repeated_from_its_last_token(models: dict[str, Path]) -> None:
    prompt = [1, 2, 3, 4, 5]
    for wanted in (1, 6):  # a chunk that is followed by a single token, and one by several
        plain = start_driver(models["with NaN"], [GREEDY])
        plain.start(0)
        expected = read_tokens(plain.run([plain.row(0, prompt)]), [0])
        expected[0] += decode(plain, [0], wanted)[0]
        driver = start_driver(models["with NaN"], [GREEDY], DRAFTS)
        draft(driver, expected, lambda tokens: [*tokens[:2], NAN_TOKEN])
        driver.start(0)
        result = driver.run([driver.row(0, prompt, samples=1 + DRAFTS)])
        assert unpacked(result.counts) == [0] and not result.errors
        assert decode(driver, [0], 1 + wanted, wanted)[0] == expected[0]


def test_a_slot_may_be_set_up_again_after_a_step_with_drafts(models: dict[str, Path]) -> None:
    plain, driver = (start_driver(models["plain"], KINDS[:2], speculate) for speculate in (0, DRAFTS))
    expected = decode(plain, [0], TOKENS)
    draft(driver, expected, right)
    driver.run([driver.row(0, samples=1 + DRAFTS)])
    for each in (plain, driver):
        each.start(0, FILTERED)
        each.run([each.row(0, PROMPTS[1])])
    driver.runner._drafter = None
    assert decode(driver, [0, 1], 5) == decode(plain, [0, 1], 5)


def test_a_row_for_which_no_token_is_allowed_fails_whatever_its_drafts(models: dict[str, Path]) -> None:
    nothing = SamplingParams(max_tokens=64, temperature=0.0, logit_bias=dict.fromkeys(range(300), -np.inf))
    driver = start_driver(models["plain"], [GREEDY, nothing], DRAFTS)
    expected = decode(start_driver(models["plain"], [GREEDY]), [0], TOKENS)
    draft(driver, {**expected, 1: [Token(0, -2, b"", b"", b"")] * 9}, right)
    result = driver.run([driver.row(slot, samples=1 + DRAFTS) for slot in (1, 0)])
    assert not result.errors
    assert read_tokens(result, [1, 0])[0] == expected[0][: 1 + DRAFTS]
    assert unpacked(result.counts) == [0, 1 + DRAFTS], "the first row must be repeated without drafts"
    result = driver.run([driver.row(1, samples=1 + DRAFTS)])
    assert [(error.slot, error.kind) for error in result.errors] == [(1, "nothing_allowed")]
    assert unpacked(result.counts) == [1]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 30), samples=st.integers(2, 1 + DRAFTS))
def test_any_drafts_give_the_same_tokens(random_drafts: RandomDrafts, seed: int, samples: int) -> None:
    random_drafts.check(seed, samples)


class RandomDrafts:
    """Repeats the same replies in one pair of drivers, with drafts that are changed at random."""

    def __init__(self, model: Path) -> None:
        self.plain, self.driver = start_driver(model, KINDS), start_driver(model, KINDS, DRAFTS)

    def check(self, seed: int, samples: int) -> None:
        changes = random.Random(seed)

        def change(tokens: list[int]) -> list[int]:
            guess = [token if changes.random() < 0.8 else changes.randrange(300) for token in tokens]
            return guess[: changes.randint(0, len(guess))]

        slots = changes.sample(range(len(KINDS)), changes.randint(1, len(KINDS)))
        for driver in (self.plain, self.driver):
            for slot in slots:
                params = KINDS[slot]
                grammar = 1 if params is CONSTRAINED else None
                setup = {"prompt": packed(PROMPTS[slot]), "banned_tokens": packed([7]), "grammar": grammar}
                driver._free += driver.pages[slot]
                driver.start(slot, params, **setup)
                driver.run([driver.row(slot, PROMPTS[slot])])
        expected = decode(self.plain, slots, 15)
        draft(self.driver, expected, change)
        assert decode(self.driver, slots, 15, samples) == expected


@pytest.fixture(scope="module")
def random_drafts(models: dict[str, Path]) -> RandomDrafts:
    return RandomDrafts(models["plain"])
