"""The measure of quality: its figures on known distributions, and its model beside transformers."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from arbora.runtime.config import BUILTIN_MODEL
from transformers import AutoModelForCausalLM, AutoTokenizer, BatchEncoding

sys.path.append(str(Path(__file__).parents[2] / "bench"))
sys.path.append(str(Path(__file__).parents[2] / "bench" / "lib"))
from divergence import divergence
from loaded_model import LoadedModel, config_of
from quality import arguments_of, label, main, measure, oracle, parse, quality_table, windows_of
from train_builtin.evaluate import greedy_reply

CONTEXT = 512
MESSAGES = [{"role": "user", "content": "My name is Ada."}]
TEXT = "Ada Berg lives in Oslo. " * 12


def log(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows).log()


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return LoadedModel(config_of([str(BUILTIN_MODEL), "--dtype", "float32"], CONTEXT))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(BUILTIN_MODEL)


@pytest.fixture(scope="module")
def tokens(tokenizer: Any) -> list[int]:
    found: list[int] = tokenizer.encode(TEXT)
    assert 64 < len(found) < CONTEXT
    return found


def test_the_divergence_of_known_distributions() -> None:
    reference = log([0.5, 0.25, 0.25], [0.8, 0.1, 0.1])
    measured = log([0.25, 0.5, 0.25], [0.8, 0.1, 0.1])
    found = divergence(reference, measured, torch.tensor([0, 1]))
    expected = 0.5 * math.log(2) - 0.25 * math.log(2)
    assert found.kl_mean == pytest.approx(expected / 2)
    assert found.kl_p99 == pytest.approx(expected)
    assert found.top1 == 0.5
    assert found.perplexity == pytest.approx((0.25 * 0.1) ** -0.5)


def test_the_divergence_from_itself_is_nothing() -> None:
    found = divergence(log([0.7, 0.2, 0.1]), log([0.7, 0.2, 0.1]), torch.tensor([0]))
    assert (found.kl_mean, found.kl_p99, found.top1) == (0, 0, 1)


@pytest.mark.parametrize("chunk", [1, 50, 512])
def test_logprobs_equal_those_of_transformers(model: LoadedModel, tokens: list[int], chunk: int) -> None:
    ours = model.logprobs(tokens, chunk)
    theirs = oracle(BUILTIN_MODEL)(tokens)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-4)
    assert divergence(theirs, ours, torch.tensor(tokens[1:])).kl_mean < 1e-8


def test_a_text_has_the_same_logprobs_after_another(model: LoadedModel, tokens: list[int]) -> None:
    alone = model.logprobs(tokens, 64)
    model.logprobs(tokens[::-1], 64)
    torch.testing.assert_close(model.logprobs(tokens, 64), alone, rtol=0, atol=0)


def test_a_reply_equals_that_of_transformers(model: LoadedModel, tokenizer: Any) -> None:
    encoded = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=True)
    assert isinstance(encoded, BatchEncoding)
    reply = model.reply(list(encoded["input_ids"]), frozenset([tokenizer.eos_token_id]), 64)
    module = AutoModelForCausalLM.from_pretrained(BUILTIN_MODEL, dtype=torch.float32)
    assert tokenizer.decode(reply) == greedy_reply(MESSAGES, module, tokenizer)


def test_a_reply_ends_at_its_limit(model: LoadedModel, tokens: list[int]) -> None:
    assert len(model.reply(tokens, frozenset(), 3)) == 3


def test_a_format_is_a_short_name_or_options_or_another_model() -> None:
    assert arguments_of("bfloat16", Path("m")) == ["m", "--dtype", "bfloat16"]
    assert arguments_of("int8", Path("m")) == ["m", "--quantize", "int8"]
    assert arguments_of("--quantize int4 --kv-dtype int8", Path("m"))[0] == "m"
    assert arguments_of("m.gguf --dtype float32", Path("m")) == ["m.gguf", "--dtype", "float32"]


@pytest.mark.parametrize(
    ("format_", "expected"),
    [("/models/m.gguf --dtype float32", "m.gguf --dtype float32"), ("--kv-dtype int8", "--kv-dtype int8")],
)
def test_the_table_names_a_format_without_its_folder(format_: str, expected: str) -> None:
    assert label(format_) == expected


def test_windows_cover_the_text_without_a_piece_of_one_token() -> None:
    assert windows_of(range(9), 4, 7) == [[0, 1, 2, 3], [4, 5, 6]]
    assert windows_of(range(9), 4, 9) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert windows_of(range(3), 4, 9) == [[0, 1, 2]]


def test_a_format_that_cannot_be_used_is_refused_before_anything_is_measured(capsys: Any) -> None:
    with (
        patch.object(sys, "argv", ["quality.py", "--format", "--dtype nonsense"]),
        pytest.raises(SystemExit, match=r"quality\.py: error: --dtype nonsense"),
    ):
        main()
    assert capsys.readouterr() == ("", "")


def test_the_table_has_a_row_for_each_format() -> None:
    options = parse(["--format", "bfloat16", "--tokens", "128", "--window", "64", "--conversations", "1"])
    reference, rounded = measure(options)
    assert reference.texts["prose"].kl_mean == 0 and reference.texts["prose"].top1 == 1
    assert 1e-6 < rounded.texts["prose"].kl_mean < 1e-2
    assert 0.9 < rounded.texts["conversations"].top1 <= 1
    assert set(reference.tasks) == {"chat", "document", "json", "talk", "same replies"}
    assert reference.tasks["same replies"] == 1 and 0.5 < rounded.tasks["same replies"] <= 1
    lines = quality_table([reference, rounded]).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| float32", "| bfloat16"]
