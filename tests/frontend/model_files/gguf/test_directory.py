"""The model directory that is made from a GGUF file."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from arbora.frontend.core.text.chat_template import ChatTemplate
from arbora.frontend.core.text.tokenizer import Tokenizer
from arbora.frontend.model_files.gguf import directory
from arbora.frontend.model_files.gguf.directory import gguf_directory
from arbora.frontend.model_files.model_source import find_model, served_name
from arbora.runtime.errors import ConfigError
from arbora.runtime.families import family_of
from checkpoints import random_model
from gguf import GGMLQuantizationType as Type
from gguf_models import SHAPE, add_tensors, finish_file, one_type, start_file
from gguf_vocabularies import add_byte_level


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "arbora" / "gguf"


def write(path: Path) -> Path:
    model = random_model("qwen2", **{**SHAPE, "num_hidden_layers": 1, "vocab_size": 486})
    writer = start_file(path, model)
    add_byte_level(writer, "qwen2")
    writer.add_chat_template("{{ messages[0].content }}{{ eos_token }}")
    add_tensors(writer, model, one_type(Type.Q8_0))
    finish_file(writer)
    return path


def test_a_file_becomes_a_model_directory(tmp_path: Path, cache: Path) -> None:
    file = write(tmp_path / "small.Q8_0.gguf")
    made = find_model(str(file))
    assert made.parent == cache
    assert (made / "small.Q8_0.gguf").resolve() == file
    assert family_of(made).qkv_bias
    tokenizer = Tokenizer.load(made)
    assert tokenizer.eos_tokens == (2, 4)
    template = ChatTemplate.load(made, tokenizer)
    assert template is not None
    assert template.render([{"role": "user", "content": "Hi"}]) == "Hi</s>"
    assert served_name(str(file)) == "small.Q8_0"


def test_a_link_to_a_file_keeps_its_name(tmp_path: Path) -> None:
    blob = write(tmp_path / "0123abcd")
    for name in ("small.gguf", "large-00001-of-00002.gguf", "large-00002-of-00002.gguf"):
        (tmp_path / name).symlink_to("0123abcd")
    for first, names in (("small.gguf", ["small"]), ("large-00001-of-00002.gguf", ["large", "large"])):
        made = sorted(find_model(str(tmp_path / first)).glob("*.gguf"))
        assert [path.name.partition("-")[0].removesuffix(".gguf") for path in made] == names
        assert {path.readlink() for path in made} == {blob}


def test_a_broken_directory_is_made_again(tmp_path: Path) -> None:
    file = write(tmp_path / "small.gguf")
    made = gguf_directory(file)
    whole = {path.name for path in made.iterdir()}
    (made / "config.json").unlink()
    assert gguf_directory(file) == made
    assert {path.name for path in made.iterdir()} == whole


def test_an_error_about_an_unwritable_cache_says_where_it_is(tmp_path: Path, cache: Path) -> None:
    file = write(tmp_path / "small.gguf")
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the directory should be")
    with pytest.raises(ConfigError, match=r"small.gguf: .* written to .*gguf .*XDG_CACHE_HOME") as caught:
        gguf_directory(file)
    assert str(cache) in str(caught.value)


def test_the_directory_is_made_once_and_again_when_the_file_changes(tmp_path: Path) -> None:
    file = write(tmp_path / "small.gguf")
    made = gguf_directory(file)
    (made / "mark").touch()
    assert gguf_directory(file) == made and (made / "mark").exists()
    os.utime(file, (1, 1))
    assert gguf_directory(file) != made


def test_the_directories_used_last_are_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "KEPT", 2)
    file = write(tmp_path / "small.gguf")
    made = []
    for age in (30, 20, 10):
        os.utime(file, (age, age))
        made.append(gguf_directory(file))
        os.utime(made[-1], (1000 - age, 1000 - age))
    assert {path.name for path in cache.iterdir()} == {path.name for path in made[1:]}


def test_directories_used_in_the_last_month_are_all_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "KEPT", 1)
    file = write(tmp_path / "small.gguf")
    made = []
    for age in (30, 20, 10):
        os.utime(file, (age, age))
        made.append(gguf_directory(file))
    assert set(cache.iterdir()) == set(made)


def test_a_failure_leaves_nothing_behind(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(write(tmp_path / "whole.gguf").read_bytes()[:-5000])
    with pytest.raises(ConfigError, match=r"broken.gguf ends at byte"):
        find_model(str(file))
    assert not cache.exists() or not list(cache.iterdir())


def test_a_missing_part_of_a_split_model_is_named(tmp_path: Path) -> None:
    write(tmp_path / "small-00001-of-00002.gguf")
    with pytest.raises(ConfigError, match=r"small-00002-of-00002.gguf: this part of the model is missing"):
        find_model(str(tmp_path / "small-00001-of-00002.gguf"))


def test_a_directory_may_have_a_gguf_file_beside_its_config_and_tokenizer(tmp_path: Path) -> None:
    made = find_model(str(write(tmp_path / "small.gguf")))
    own = tmp_path / "own"
    shutil.copytree(made, own)
    assert find_model(str(own)) == own
    shutil.copy(own / "small.gguf", own / "other.gguf")
    with pytest.raises(ConfigError, match=r"several GGUF files. Name one: other.gguf, small.gguf"):
        find_model(str(own))


def test_a_directory_of_gguf_files_alone_asks_for_one_of_them(tmp_path: Path) -> None:
    write(tmp_path / "small.gguf")
    with pytest.raises(ConfigError, match=r"no config.json. Name one of its files: small.gguf"):
        find_model(str(tmp_path))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))
    with pytest.raises(
        ConfigError, match=r"is a file. Name the directory that contains config.json, or a GGUF"
    ):
        find_model(str(tmp_path / "config.json"))


def test_more_tokens_than_rows_of_the_embedding_are_refused(tmp_path: Path) -> None:
    model = random_model("qwen2", **{**SHAPE, "num_hidden_layers": 1, "vocab_size": 480})
    writer = start_file(tmp_path / "small.gguf", model)
    add_byte_level(writer, "qwen2")
    add_tensors(writer, model, one_type(Type.Q8_0))
    finish_file(writer)
    with pytest.raises(ConfigError, match=r"486 tokens, more than the 480 rows of tensor token_embd.weight"):
        gguf_directory(tmp_path / "small.gguf")
