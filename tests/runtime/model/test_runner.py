"""The parts of a step beside the decoder: slots, copies, masks, grammars, reports, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from arbora.grammars import Automaton
from arbora.runtime.automaton_format import NO_AUTOMATON, STACK_DEPTH
from arbora.runtime.messages import (
    DropGrammar,
    Logprobs,
    PageCopy,
    Row,
    StepMasks,
    StepPlan,
    StepResult,
)
from arbora.runtime.model import prompt_logprobs
from arbora.runtime.model.loading import load_model
from arbora.runtime.sampling_params import SamplingParams
from byte_grammars import EOS, WORDS, bits, byte_vocabulary, nested
from checkpoints import VOCAB_SIZE, random_model, save_model
from stack_automata import after_text, automaton, load_message, tables
from step_driver import GREEDY, StepDriver, full_logprobs, no_masks, packed, serve_config, unpacked

NAN_TOKEN = 7
PROMPT = [5, 17, 3, 250, 44, 80, 12]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its embedding of NAN_TOKEN is NaN, so a prompt with that token has no logits."""
    model = random_model("qwen3", num_hidden_layers=2)
    with torch.no_grad():
        model.get_input_embeddings().get_parameter("weight")[NAN_TOKEN] = float("nan")
    return save_model(model, tmp_path_factory.mktemp("model"))


@pytest.fixture
def driver(model: Path) -> StepDriver:
    loaded = load_model(serve_config(model), byte_vocabulary)
    return StepDriver(loaded.runner, loaded.ready)


def sampled(driver: StepDriver, params: SamplingParams, count: int, slot: int = 0, **setup: Any) -> list[int]:
    """`count` tokens after PROMPT."""
    driver.start(slot, params, **setup)
    return [driver.prefill(slot, PROMPT)] + [driver.decode([slot])[0] for _ in range(count - 1)]


def decode_chosen(report: Logprobs) -> float:
    return float(np.frombuffer(report.chosen, np.float32)[0])


def test_a_result_has_the_tokens_of_rows_that_sample_in_the_plans_order(driver: StepDriver) -> None:
    for slot in (4, 2, 6):
        driver.start(slot)
    driver.run([driver.row(4, PROMPT), driver.row(2, PROMPT)])
    result = driver.run([driver.row(4), driver.row(2), driver.row(6, PROMPT, samples=0)])
    assert unpacked(result.counts) == [1, 1, 0]
    assert len(unpacked(result.tokens)) == 2
    assert unpacked(result.states) == [NO_AUTOMATON, NO_AUTOMATON]
    assert result.elapsed_ms > 0


def test_a_row_that_may_sample_several_tokens_samples_and_counts_one(driver: StepDriver) -> None:
    expected = sampled(driver, GREEDY, 3)
    driver.start(1)
    results = [driver.run([driver.row(1, PROMPT)]), *(driver.run([driver.row(1, samples=3)]) for _ in "ab")]
    assert [unpacked(result.counts) for result in results] == [[1]] * 3
    assert [unpacked(result.tokens)[0] for result in results] == expected


def test_a_step_without_rows_still_copies_its_pages(driver: StepDriver) -> None:
    expected = sampled(driver, GREEDY, 3)
    spare = next(page for page in range(driver.ready.num_pages) if page not in driver.pages[0])
    result = driver.runner.run(StepPlan(99, [], copies=[PageCopy(driver.pages[0][0], spare)]), no_masks)
    assert result == StepResult(99, b"", b"", b"", result.elapsed_ms)
    driver.start(1)
    row = Row(1, len(PROMPT), packed(expected[:1]), new_pages=packed([spare]))
    assert unpacked(driver.run([row]).tokens) == expected[1:2]


def test_a_setup_empties_the_slots_page_table(driver: StepDriver) -> None:
    first = sampled(driver, GREEDY, 4)
    assert sampled(driver, GREEDY, 4) == first


def test_a_row_without_numbers_ends_with_an_error_and_harms_no_other(driver: StepDriver) -> None:
    alone = sampled(driver, GREEDY, 2, slot=3)
    driver.start(0)
    driver.start(1)
    driver.start(2)
    result = driver.run([driver.row(slot, PROMPT) for slot in (0, 2)] + [driver.row(1, [1, NAN_TOKEN, 2])])
    assert [error.slot for error in result.errors] == [1]
    assert "NaN" in result.errors[0].message
    assert unpacked(result.tokens)[:2] == [alone[0], alone[0]]
    result = driver.run([driver.row(slot) for slot in (0, 1, 2)])
    assert [error.slot for error in result.errors] == [1]
    assert unpacked(result.tokens)[::2] == [alone[1], alone[1]]


def test_pages_that_held_nan_serve_the_next_request(driver: StepDriver) -> None:
    expected = sampled(driver, GREEDY, 4)
    driver.start(1)
    driver.prefill(1, [NAN_TOKEN] * 14)
    spoiled = driver.pages[1]
    driver.start(2)
    driver.pages[2] = list(spoiled)
    row = driver.row(2, PROMPT)
    tokens = unpacked(driver.run([Row(2, 0, row.tokens, new_pages=packed(spoiled))]).tokens)
    assert [*tokens, *(driver.decode([2])[0] for _ in range(3))] == expected


def test_a_mask_that_allows_nothing_ends_the_row(driver: StepDriver) -> None:
    driver.start(0)
    row = driver.row(0, PROMPT, host_mask=True)
    result = driver.run([row], masks=lambda: StepMasks(1, packed([0]), bits([])))
    assert [error.slot for error in result.errors] == [0]
    assert "No token is allowed" in result.errors[0].message


def test_host_masks_go_to_their_slots_and_absent_rows_are_free(driver: StepDriver) -> None:
    free = sampled(driver, GREEDY, 1, slot=7)
    for slot in range(4):
        driver.start(slot)
    rows = [driver.row(slot, PROMPT, host_mask=slot != 1) for slot in range(4)]
    masks = StepMasks(1, packed([2, 0]), bits([201, 202]) + bits([100]))
    tokens = unpacked(driver.run(rows, masks=lambda: masks).tokens)
    assert tokens[0] == 100
    assert tokens[1] == tokens[3] == free[0]
    assert tokens[2] in (201, 202)


def test_masks_that_come_too_late_end_their_rows_only(driver: StepDriver) -> None:
    free = sampled(driver, GREEDY, 1, slot=7)
    for slot in range(3):
        driver.start(slot)
    rows = [driver.row(slot, PROMPT, host_mask=slot == 1) for slot in range(3)]
    result = driver.run(rows, masks=lambda: None)
    assert [error.slot for error in result.errors] == [1]
    assert unpacked(result.tokens)[::2] == [free[0], free[0]]


def load_ab_grammar(driver: StepDriver, grammar: int) -> None:
    """The text is a, then any number of b, then the end."""
    classes = np.zeros(256, np.uint8)
    classes[ord("a")], classes[ord("b")] = 1, 2
    transitions = np.array([[-1, 1, -1], [-1, -1, 1]], np.int32)
    masks = np.frombuffer(bits([ord("a")]) + bits([ord("b"), EOS]), np.int32).reshape(2, WORDS)
    driver.runner.load_grammar(load_message(grammar, tables(classes, transitions, [0, 1], masks)))


def test_a_grammar_constrains_its_rows_and_reports_their_states(driver: StepDriver) -> None:
    load_ab_grammar(driver, 11)
    free = sampled(driver, GREEDY, 2, slot=5)
    driver.start(0, GREEDY, grammar=11, state=0)
    driver.start(1)
    first = driver.run([driver.row(0, PROMPT), driver.row(1, PROMPT)])
    assert unpacked(first.tokens) == [ord("a"), free[0]]
    assert unpacked(first.states) == [1, NO_AUTOMATON]
    second = driver.run([driver.row(0), driver.row(1)])
    assert unpacked(second.tokens)[0] in (ord("b"), EOS)
    assert unpacked(second.states) == [1, NO_AUTOMATON]


def test_a_slot_forgets_its_grammar_when_set_up_anew(driver: StepDriver) -> None:
    free = sampled(driver, GREEDY, 2)
    load_ab_grammar(driver, 1)
    assert sampled(driver, GREEDY, 1, grammar=1, state=0) == [ord("a")]
    assert sampled(driver, GREEDY, 2) == free
    driver.runner.drop_grammar(DropGrammar(1))
    load_ab_grammar(driver, 2)
    assert sampled(driver, GREEDY, 1, grammar=2, state=0) == [ord("a")]


def load_nested(driver: StepDriver, grammar: int) -> Automaton:
    driver.runner.load_grammar(load_message(grammar, nested()))
    return automaton("nested", nested())


def test_a_row_nests_as_deep_as_its_stack_and_returns(driver: StepDriver) -> None:
    load_nested(driver, 3)
    a, b = ord("a"), ord("b")
    deepest = SamplingParams(max_tokens=99, temperature=0.0, logit_bias={a: 50.0})
    tokens = sampled(driver, deepest, STACK_DEPTH + 4, grammar=3)
    assert tokens == [a] * STACK_DEPTH + [b, a, b, a]
    shallow = SamplingParams(max_tokens=99, temperature=0.0, logit_bias={b: 50.0})
    tokens = sampled(driver, shallow, 5, grammar=3, state=1, stack=packed([0, 1, 1]), position=3)
    assert tokens == [b, b, b, EOS, EOS]


@pytest.mark.parametrize("kept", [1, 4, 9])
def test_a_row_with_a_stack_resumes_with_the_same_tokens(driver: StepDriver, kept: int) -> None:
    followed = load_nested(driver, 4)
    params = SamplingParams(max_tokens=64, temperature=1.0, seed=5)
    deep = b"a" * 12
    state, stack = after_text(followed, deep)
    whole = sampled(driver, params, 14, grammar=4, state=state, stack=packed(stack))
    assert set(whole[:10]) == {ord("a"), ord("b")}
    state, stack = after_text(followed, deep + bytes(whole[:kept]))
    driver.start(6, params, position=kept, grammar=4, state=state, stack=packed(stack))
    resumed = [driver.prefill(6, PROMPT + whole[:kept])]
    resumed += [driver.decode([6])[0] for _ in range(13 - kept)]
    assert resumed == whole[kept:]


def test_rows_with_and_without_a_stack_share_a_step(driver: StepDriver) -> None:
    load_nested(driver, 1)
    load_ab_grammar(driver, 2)
    free = sampled(driver, GREEDY, 1, slot=7)
    driver.start(0, GREEDY, grammar=2, state=0)
    driver.start(3)
    driver.start(5, GREEDY, grammar=1, state=1, stack=packed([0]))
    result = driver.run([driver.row(slot, PROMPT) for slot in (0, 3, 5)])
    first, second, third = unpacked(result.tokens)
    assert (first, second) == (ord("a"), free[0]) and third in (ord("a"), ord("b"))
    assert unpacked(result.states) == [1, NO_AUTOMATON, 1 if third == ord("a") else 2]


def test_each_row_gets_as_many_logprobs_as_it_asked_for(driver: StepDriver) -> None:
    wanted = {0: 3, 1: None, 2: 0}
    for slot, count in wanted.items():
        driver.start(slot, SamplingParams(max_tokens=4, temperature=0.0, logprobs=count))
    result = driver.run([driver.row(slot, PROMPT) for slot in wanted])
    assert [report.slot for report in result.logprobs] == [0, 2]
    three, none = (report.logprobs for report in result.logprobs)
    assert len(unpacked(three.top_ids)) == 3 and none.top_ids == b""
    assert unpacked(three.top_ids)[0] == unpacked(result.tokens)[0]
    assert decode_chosen(three) == decode_chosen(none)
    assert decode_chosen(three) == np.frombuffer(three.top_values, np.float32)[0]


def test_prompt_logprobs_do_not_depend_on_how_they_are_sliced(
    driver: StepDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=VOCAB_SIZE)
    driver.start(0, params)
    whole = driver.prompt_logprobs(0, PROMPT, 100)
    monkeypatch.setattr(prompt_logprobs, "SLICE_BYTES", 2 * 4 * VOCAB_SIZE)
    driver.start(1, params)
    assert (driver.prompt_logprobs(1, PROMPT, 4) - whole).abs().max() < 1e-5
    assert whole.exp().sum(-1).allclose(torch.ones(len(PROMPT) - 1), atol=1e-4)


def test_prompt_logprobs_of_a_chunk_rank_alternatives(driver: StepDriver) -> None:
    driver.start(0, SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=2))
    driver.run([driver.row(0, PROMPT[:3], samples=0, targets=packed(PROMPT[1:4]))])
    result = driver.run([driver.row(0, PROMPT[3:], targets=packed(PROMPT[4:]))])
    (report,) = result.prompt_logprobs
    assert len(unpacked(report.logprobs.chosen)) == len(PROMPT) - 4
    values = np.frombuffer(report.logprobs.top_values, np.float32).reshape(-1, 2)
    assert (values[:, 0] >= values[:, 1]).all()
    assert len(unpacked(result.tokens)) == 1


def test_a_prompt_without_numbers_has_an_error_for_its_logprobs(driver: StepDriver) -> None:
    driver.start(0, SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1))
    prompt = [1, NAN_TOKEN, 2]
    result = driver.run([driver.row(0, prompt, samples=0, targets=packed([NAN_TOKEN, 2, 3]))])
    assert [error.slot for error in result.errors] == [0]
    assert result.prompt_logprobs == []


def test_equal_logits_rank_by_rising_token_id() -> None:
    logits = torch.tensor([[0.0, 2.0, -0.0, 2.0, 2.0, -1.0]])
    copies = prompt_logprobs.prompt_logprobs(logits, lambda x: x, 6, np.array([1], np.int32), 5)
    logprobs = prompt_logprobs.report(copies)
    assert logprobs is not None
    assert unpacked(logprobs.top_ids) == [1, 3, 4, 0, 2]


SAMPLING = SamplingParams(max_tokens=64, temperature=1.3, top_p=0.95, seed=42)


def test_sampled_tokens_depend_on_the_seed_not_on_slot_or_company(driver: StepDriver) -> None:
    alone = sampled(driver, SAMPLING, 6)
    for slot in (3, 1, 5):
        driver.start(slot, SAMPLING if slot == 1 else GREEDY)
    together = [unpacked(driver.run([driver.row(slot, PROMPT) for slot in (3, 1, 5)]).tokens)[1]]
    together += [driver.decode([3, 1, 5])[1] for _ in range(5)]
    assert together == alone
    other_seed = SamplingParams(max_tokens=64, temperature=1.3, top_p=0.95, seed=43)
    assert sampled(driver, other_seed, 6) != alone


def test_a_retracted_request_resumes_with_the_same_tokens(driver: StepDriver) -> None:
    """Its prompt and output become the prompt; position and penalties go on from where they were."""
    penalised = SamplingParams(
        max_tokens=64, temperature=1.1, seed=9, frequency_penalty=0.8, repetition_penalty=1.3
    )
    whole = sampled(driver, penalised, 10, prompt=packed(PROMPT))
    kept = whole[:4]
    driver.start(6, penalised, position=4, prompt=packed(PROMPT), output=packed(kept))
    resumed = [driver.prefill(6, PROMPT + kept), *(driver.decode([6])[0] for _ in range(5))]
    assert resumed == whole[4:]


def test_a_request_resumes_at_its_position_without_sending_its_output(driver: StepDriver) -> None:
    whole = sampled(driver, SAMPLING, 8)
    driver.start(2, SAMPLING, position=3)
    assert [driver.prefill(2, PROMPT + whole[:3]), driver.decode([2])[0]] == whole[3:5]


def test_banned_tokens_wait_for_min_tokens(driver: StepDriver) -> None:
    (first,) = sampled(driver, GREEDY, 1)
    params = SamplingParams(max_tokens=8, temperature=0.0, min_tokens=2, logit_bias={first: 50.0})
    tokens = sampled(driver, params, 4, banned_tokens=packed([first]))
    assert first not in tokens[:2]
    assert tokens[2:] == [first, first]


def test_decode_logprobs_are_of_the_raw_logits(driver: StepDriver) -> None:
    params = SamplingParams(max_tokens=4, temperature=2.0, logprobs=VOCAB_SIZE, seed=1, logit_bias={9: 30.0})
    plain = SamplingParams(max_tokens=4, temperature=0.0, logprobs=VOCAB_SIZE)
    driver.start(0, params)
    driver.start(1, plain)
    result = driver.run([driver.row(0, PROMPT), driver.row(1, PROMPT)])
    biased, raw = (full_logprobs(report.logprobs, VOCAB_SIZE) for report in result.logprobs)
    assert torch.equal(biased, raw)
    assert unpacked(result.tokens)[0] == 9


def test_bfloat16_repeats_itself(model: Path) -> None:
    first, second = (
        sampled(StepDriver.load(model, dtype="bfloat16"), SAMPLING, 12, slot=slot) for slot in (0, 5)
    )
    assert first == second
