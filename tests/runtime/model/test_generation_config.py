"""What generation_config.json recommends for sampling."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from arbora.frontend.core.declared import find_ranges
from arbora.frontend.core.fields import SamplingFields
from arbora.runtime.errors import ConfigError
from arbora.runtime.gguf_file import GgufFile
from arbora.runtime.model.generation_config import sampling_defaults
from arbora.runtime.sampling_params import SamplingDefaults
from checkpoints import random_model
from gguf import GGUFValueType
from gguf_models import SHAPE, finish_file, start_file

VALUE_TYPES = {float: GGUFValueType.FLOAT32, int: GGUFValueType.INT32, str: GGUFValueType.STRING}


def write(directory: Path, text: str) -> Path:
    (directory / "generation_config.json").write_text(text)
    return directory


def test_a_model_without_the_file_recommends_nothing(tmp_path: Path) -> None:
    assert sampling_defaults(tmp_path) == SamplingDefaults()


def test_fields_that_are_null_or_absent_keep_their_defaults(tmp_path: Path) -> None:
    text = '{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": null, "eos_token_id": [1, 2]}'
    assert sampling_defaults(write(tmp_path, text)) == SamplingDefaults(temperature=0.6, top_k=20)


def test_all_fields_are_read(tmp_path: Path) -> None:
    text = '{"temperature": 0, "top_k": -1, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1}'
    assert sampling_defaults(write(tmp_path, text)) == SamplingDefaults(0.0, -1, 0.95, 0.05, 1.1)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("temperature", "-0.5", "between 0 and 2"),
        ("temperature", "2.5", "between 0 and 2"),
        ("top_k", "-2", "at least -1"),
        ("top_p", "-0.1", "between 0 and 1"),
        ("top_p", "1.5", "between 0 and 1"),
        ("min_p", "2.0", "between 0 and 1"),
        ("repetition_penalty", "0.0", "between 0.01 and 100"),
    ],
)
def test_a_value_that_no_request_may_have_is_an_error(
    field: str, value: str, allowed: str, tmp_path: Path
) -> None:
    path = write(tmp_path, f'{{"{field}": {value}}}') / "generation_config.json"
    with pytest.raises(ConfigError) as caught:
        sampling_defaults(tmp_path)
    assert (
        str(caught.value) == f"{path}: {field} is {value}, but must be {allowed}. Correct it, or remove it."
    )


def test_the_limits_are_those_of_requests(tmp_path: Path) -> None:
    for name, (low, high, _) in find_ranges(SamplingFields).items():
        if name not in SamplingDefaults.__struct_fields__:
            continue
        for limit in (low, high):
            if limit is not None:
                sampling_defaults(write(tmp_path, f'{{"{name}": {limit}}}'))
        with pytest.raises(ConfigError):
            sampling_defaults(write(tmp_path, f'{{"{name}": {low - 1}}}'))
        if high is not None:
            with pytest.raises(ConfigError):
                sampling_defaults(write(tmp_path, f'{{"{name}": {high + 1}}}'))


def gguf(directory: Path, **sampling: object) -> GgufFile:
    """A file with these `general.sampling` keys."""
    writer = start_file(directory / "small.gguf", random_model("llama", **SHAPE))
    for key, value in sampling.items():
        writer.add_key_value(f"general.sampling.{key}", value, VALUE_TYPES[type(value)])
    finish_file(writer)
    return GgufFile(directory / "small.gguf")


LLAMA_CPP = SamplingDefaults(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)


def test_a_gguf_file_that_names_no_sampling_is_sampled_as_by_llama_cpp_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, '{"eos_token_id": [1, 2]}')
    file = gguf(tmp_path)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert sampling_defaults(tmp_path, file) == LLAMA_CPP
    assert caplog.messages == [
        "sampling where a request leaves it out: temperature 0.8, top_k 40, top_p 0.95, min_p 0.05 "
        "(from llama.cpp's defaults for GGUF files)"
    ]


def test_what_a_gguf_file_names_overrides_only_that_default(tmp_path: Path) -> None:
    found = sampling_defaults(tmp_path, gguf(tmp_path, temp=0.5, top_k=0, penalty_repeat=1.25))
    assert found == SamplingDefaults(0.5, 0, 0.95, 0.05, 1.25)


def test_a_generation_config_beside_a_gguf_file_recommends_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = gguf(tmp_path, temp=0.5)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        found = sampling_defaults(write(tmp_path, '{"top_p": 0.9}'), file)
    assert found == SamplingDefaults(top_p=0.9)
    assert caplog.messages == [
        "sampling where a request leaves it out: top_p 0.9 (from generation_config.json)"
    ]


@pytest.mark.parametrize(
    ("value", "words"),
    [(3.0, r"general.sampling.temp is 3.0, but must be between 0 and 2"), ("hot", "`float")],
)
def test_a_gguf_file_with_a_value_that_no_request_may_have_is_an_error(
    value: object, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        sampling_defaults(tmp_path, gguf(tmp_path, temp=value))
    assert str(tmp_path / "small.gguf") in str(caught.value)


@pytest.mark.parametrize("text", ['{"temperature": "warm"}', '{"temperature": 1'])
def test_a_file_that_cannot_be_read_is_named(text: str, tmp_path: Path) -> None:
    path = write(tmp_path, text) / "generation_config.json"
    with pytest.raises(ConfigError, match=str(path)):
        sampling_defaults(tmp_path)
