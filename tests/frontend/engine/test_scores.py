"""`Engine.score` and `prompt_logprobs` against transformers."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import arbora
import pytest
import torch
from transformers import AutoModelForCausalLM

HELLO = [{"role": "user", "content": "Hello, how are you today?"}]
CHOICES = [" lazy dog", " cat", " the mat and the dog sat on the log", "zzz", " c"]
PROMPTS = ["The quick brown fox jumps over the", "the cat sat on the c", "Hello "]


@pytest.fixture(scope="module")
def oracle(model: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)


@torch.inference_mode()
def logprobs_of(oracle: Any, tokens: list[int]) -> list[float]:
    """The log-probability of each token after the first."""
    rows = oracle(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
    return [float(row[token]) for row, token in zip(rows, tokens[1:], strict=True)]


def common_prefix(prompts: list[list[int]]) -> int:
    length = 0
    while all(len(each) > length for each in prompts) and len({each[length] for each in prompts}) == 1:
        length += 1
    return length


def expected_scores(oracle: Any, alone: list[int], wholes: list[list[int]]) -> list[tuple[float, int]]:
    start = common_prefix([alone, *wholes])
    return [(sum(logprobs_of(oracle, tokens)[start - 1 :]), len(tokens) - start) for tokens in wholes]


def assert_scores(scores: list[arbora.Score], expected: list[tuple[float, int]]) -> None:
    assert [score.tokens for score in scores] == [tokens for _, tokens in expected]
    for score, (logprob, tokens) in zip(scores, expected, strict=True):
        assert score.logprob == pytest.approx(logprob, abs=1e-3)
        assert score.mean == pytest.approx(logprob / tokens, abs=1e-3)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_choices_have_the_log_probabilities_of_transformers(
    engine: arbora.Engine, oracle: Any, prompt: str
) -> None:
    wholes = [engine.tokenize(prompt + choice) for choice in CHOICES]
    expected = expected_scores(oracle, engine.tokenize(prompt), wholes)
    for _ in range(2):  # the second time from the cache
        assert_scores(engine.score(prompt, CHOICES), expected)
    assert_scores(engine.score(prompt, CHOICES, cache_prompt=False), expected)


def test_a_choice_that_merges_with_the_prompt_s_last_token_is_scored_from_that_token_on(
    engine: arbora.Engine,
) -> None:
    alone, whole = engine.tokenize("the do"), engine.tokenize("the dog")
    assert whole[: len(alone)] != alone, "or the test shows nothing"
    (score,) = engine.score("the do", ["g"])
    assert score.tokens == len(whole) - common_prefix([alone, whole])


@pytest.mark.parametrize(
    "messages", [HELLO, [*HELLO, {"role": "assistant", "content": "I am"}]], ids=["begun", "continued"]
)
def test_choices_of_a_conversation_begin_or_continue_the_assistant_s_reply(
    engine: arbora.Engine, oracle: Any, messages: list[dict[str, str]]
) -> None:
    begun = messages[-1]["content"] if len(messages) > 1 else ""
    wholes = [
        engine.tokenize(
            [*HELLO, {"role": "assistant", "content": begun + choice}], continue_final_message=True
        )
        for choice in CHOICES
    ]
    alone = engine.tokenize(messages, continue_final_message=bool(begun))
    assert_scores(engine.score(messages, CHOICES), expected_scores(oracle, alone, wholes))


def test_more_choices_than_may_wait_are_scored_in_their_order(engine: arbora.Engine) -> None:
    choices = [f" {number} dogs" for number in range(12)]
    together = engine.score("the", choices)
    alone = [engine.score("the", [choice, choices[0]])[0].logprob for choice in choices[1:]]
    assert [score.logprob for score in together[1:]] == pytest.approx(alone, abs=1e-4)


def test_scores_come_on_asyncio_too(engine: arbora.Engine) -> None:
    async def scores() -> list[arbora.Score]:
        assert await engine.atokenize("Hello") == engine.tokenize("Hello")
        return await engine.ascore("Hello", CHOICES)

    found = [score.logprob for score in asyncio.run(scores())]
    assert found == pytest.approx([score.logprob for score in engine.score("Hello", CHOICES)], abs=1e-4)


@pytest.mark.parametrize(
    ("prompt", "choices", "expected"),
    [
        ("Hello", "yes", "choices is 'yes', but must be a list of texts"),
        ("Hello", ["a", ""], "choices is ['a', ''], but must be a list of texts"),
        ("Hello", ["a", 5], "choices is ['a', 5], but must be a list of texts"),
        ("Hello", ["a", "\ufdd1"], "choices[1] is '\\ufdd1', which adds no token to the prompt"),
        ("", ["a", "b"], "prompt shares no first token with all of its choices"),
        ("the " * 600, ["a"], "but the prompt has 602"),
        ([{"role": "user"}], ["a"], "messages[0].content is missing"),
        (5, ["a"], "messages is 5, but must be a list"),
        (
            [{"role": "assistant", "content": [{"type": "text", "text": "a"}]}],
            ["a"],
            "messages[0].content must",
        ),
    ],
)
def test_what_can_not_be_scored_is_refused(
    engine: arbora.Engine, prompt: Any, choices: Any, expected: str
) -> None:
    with pytest.raises(arbora.RequestError, match=re.escape(expected)):
        engine.score(prompt, choices)


def test_the_lease_of_scores_is_checked(engine: arbora.Engine) -> None:
    with pytest.raises(arbora.RequestError, match=r"cache_lease\.ttl_s is 0"):
        engine.score("the cat", [" sat"], cache_lease={"ttl_s": 0})


def test_prompt_logprobs_are_those_of_transformers(engine: arbora.Engine, oracle: Any) -> None:
    tokens = engine.tokenize("the dog sat on the log and the cat sat on the mat " * 8)
    expected = logprobs_of(oracle, tokens)
    whole = engine.generate(tokens, max_tokens=0, prompt_logprobs=2)
    assert list(whole.prompt_tokens) == [entry.token for entry in whole.prompt_logprobs] == tokens
    assert whole.prompt_logprobs[0].logprob is None
    assert [entry.logprob for entry in whole.prompt_logprobs[1:]] == pytest.approx(expected, abs=1e-4)
    assert {len(entry.top) for entry in whole.prompt_logprobs[1:]} == {2}
    start = len(tokens) - 7
    late = engine.generate(tokens, max_tokens=1, prompt_logprobs=0, prompt_logprobs_start=start)
    assert late.usage.cached_tokens == start - 1
    assert [entry.logprob for entry in late.prompt_logprobs[:start]] == [None] * start
    scored = [entry.logprob for entry in late.prompt_logprobs[start:]]
    assert scored == pytest.approx(expected[start - 1 :], abs=1e-4)


def test_a_prompt_of_one_token_has_no_log_probability(engine: arbora.Engine) -> None:
    assert [
        each.logprob for each in engine.generate([5], max_tokens=1, prompt_logprobs=1).prompt_logprobs
    ] == [None]
    assert engine.generate([5], max_tokens=1).prompt_logprobs == []
