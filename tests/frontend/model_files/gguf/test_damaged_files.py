"""GGUF files with random damage either load or are refused with a message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from arbora.frontend.core.text.tokenizer import Tokenizer
from arbora.frontend.model_files.gguf.directory import gguf_directory
from arbora.runtime.errors import ConfigError
from arbora.runtime.gguf_file import GgufFile
from checkpoints import random_model
from gguf import GGMLQuantizationType as Type
from gguf_models import SHAPE, add_tensors, finish_file, one_type, start_file
from gguf_vocabularies import add_byte_level, add_sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from step_driver import StepDriver

VALUES = (0, 1, 2, 4, 8, 9, 127, 128, 255)


class Damage:
    """A valid file; `broken` writes it with some bytes of its header changed."""

    def __init__(self, path: Path, family: str) -> None:
        fields = {**SHAPE, "hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 486}
        model = random_model(family, **fields)
        self.path = path / "model.gguf"
        writer = start_file(self.path, model)
        if family == "llama":
            add_sentencepiece(writer)
        else:
            add_byte_level(writer, "qwen2")
        add_tensors(writer, model, one_type(Type.Q8_0))
        finish_file(writer)
        self.whole = self.path.read_bytes()
        self.header = min(place.begin for place in GgufFile(self.path).tensors.values())

    def broken(self, changes: list[tuple[float, int]]) -> None:
        data = bytearray(self.whole)
        for part, value in changes:
            data[int(part * self.header)] = value
        self.path.write_bytes(data)


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def damage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Damage:
    return Damage(tmp_path_factory.mktemp("damaged"), request.param)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


CHANGE = st.tuples(st.floats(0, 1, exclude_max=True), st.one_of(st.sampled_from(VALUES), st.integers(0, 255)))


@settings(max_examples=150, deadline=None)
@given(changes=st.lists(CHANGE, min_size=1, max_size=4))
def test_a_file_with_a_damaged_header_loads_or_is_refused(
    damage: Damage, changes: list[tuple[float, int]]
) -> None:
    damage.broken(changes)
    try:
        directory = gguf_directory(damage.path)
        Tokenizer.load(directory)
        StepDriver.load(directory)
    except ConfigError as error:
        assert "model.gguf" in str(error)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"<!DOCTYPE html>"])
def test_a_file_without_a_header_is_refused_with_its_reason(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty.gguf"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        gguf_directory(path)
    assert (
        str(caught.value)
        == {
            b"": f"{path} is empty. Download it again.",
            b"GGUF": f"{path} ends at byte 4, within its first bytes. Download it again.",
            b"<!DOCTYPE html>": f"{path} is not a GGUF file: it begins with b'<!DO'.",
        }[content]
    )
