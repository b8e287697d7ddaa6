"""The model that a server is started with: its names, where it is found, and what it must contain."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from arbora.frontend.cli.main import build_parser, main, serve_config
from arbora.frontend.launch.serve import _model_in_words
from arbora.runtime.errors import ConfigError
from checkpoints import edit_config
from model_options import configured


def test_a_model_is_named_after_its_directory(model: Path) -> None:
    assert configured(model).served_model_name == "tiny-model"
    assert configured(model, "--served-model-name", "mine").served_model_name == "mine"


@pytest.mark.parametrize(
    "flags",
    [
        ("--served-model-name", "one", "two"),
        ("--served-model-name", "one", "--served-model-name", "two"),
        ("--served-model-name", "one,two"),
    ],
)
def test_a_model_may_have_several_names(model: Path, flags: Sequence[str]) -> None:
    config = configured(model, *flags)
    assert config.model_names == ("one", "two") and config.served_model_name == "one"


def test_a_model_that_would_be_taken_for_a_name_is_refused(model: Path) -> None:
    flags = vars(build_parser().parse_args(["serve", "--served-model-name", "one", str(model)]))
    with pytest.raises(ConfigError, match=f"Write `arbora serve {model} --served-model-name one`"):
        serve_config(flags, {})


def test_a_missing_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="MODEL /no/where: there is no such directory"):
        configured("/no/where")


@pytest.mark.parametrize("path", ["/no/where.gguf", "nowhere.gguf"])
def test_a_missing_gguf_file_is_refused(path: str) -> None:
    where = "" if path.startswith("/") else r" \(/.*\)"
    with pytest.raises(ConfigError, match=rf"MODEL {path}: there is no such file{where}\. Give the path of"):
        configured(path)


@pytest.mark.parametrize("path", ["./nope", "../nope", "~/nope", "/no/where"])
def test_a_path_that_leads_nowhere_is_not_looked_up_on_the_hub(path: str) -> None:
    where = "" if path.startswith("/") else r" \(/.*\)"
    with pytest.raises(ConfigError, match=rf"MODEL {path}: there is no such directory{where}\. Give the"):
        configured(path)


def test_a_directory_without_a_tokenizer_is_refused(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"has no tokenizer\. Copy the model's tokenizer\.json"):
        configured(model)
    (model / "tokenizer.model").touch()
    assert configured(model).model == model


def test_a_directory_without_weights_is_refused(model: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"has no \*\.safetensors and no \*\.gguf file"):
        configured(model)


@pytest.mark.parametrize("missing", ["model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"architectures": ["BertModel"], "model_type": "bert"},
            "BertModel, which does not continue",
        ),
        ({"quantization_config": {"load_in_4bit": True}}, "quant_method bitsandbytes is not supported"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "bits 3 is not supported"),
        ({"hidden_act": "unheard_of"}, "hidden_act unheard_of is not supported"),
    ],
)
def test_an_unsupported_config_is_reported_before_missing_files(
    model: Path, missing: str, change: dict[str, Any], reason: str
) -> None:
    (model / missing).unlink()
    edit_config(model, **change)
    with pytest.raises(ConfigError, match=rf"config\.json: .*{reason}"):
        configured(model)


def test_quantization_config_is_ignored_beside_a_gguf_file(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model.gguf")
    (model / "tokenizer.json").unlink()
    edit_config(model, quantization_config={"load_in_4bit": True})
    with pytest.raises(ConfigError, match="has no tokenizer"):
        configured(model)


def test_a_hub_model_without_a_network_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match="no copy in the hub's cache, and the hub can't be reached"):
        configured("nobody/nothing")
    with pytest.raises(ConfigError, match=r"^MODEL Qwen/Qwen3-0.6B-GGUF \(known as qwen3:0.6b\): "):
        configured("qwen3:0.6b")


def test_a_model_among_the_served_names_is_refused_even_if_it_does_not_exist(model: Path) -> None:
    for names, fix in (
        (("one", "./nope"), "serve ./nope --served-model-name one`"),
        (("one", "two", "Qwen/Qwen3-0.6B"), "serve Qwen/Qwen3-0.6B --served-model-name one two`"),
        (("./nope",), "serve ./nope`"),
    ):
        with pytest.raises(ConfigError, match=f"looks like a model, but .*Write `arbora {re.escape(fix)}"):
            configured("--served-model-name", *names)
    assert configured("--served-model-name", "one", "two").model_names == ("one", "two")
    assert configured("--served-model-name", "openai/gpt-4o").served_model_name == "openai/gpt-4o"
    assert configured(model, "--served-model-name", "one", "org/two").model_names == ("one", "org/two")


def test_a_server_without_a_model_says_that_it_serves_the_built_in_one(model: Path) -> None:
    builtin = configured("--served-model-name", "gpt-4o")
    assert _model_in_words(builtin) == "the built-in model, which needs no MODEL"
    assert _model_in_words(configured(model, "--served-model-name", "gpt-4o")) == str(model)


def test_an_adapter_given_as_model_is_refused_with_the_command_that_serves_it(tmp_path: Path) -> None:
    adapter = tmp_path / "sql"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"`arbora serve BASE_MODEL --lora sql={adapter}`"):
        configured(adapter)


def test_a_chat_template_is_a_file_or_its_text(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "plain.jinja"
    file.write_text("of a file")
    assert configured(model, "--chat-template", str(file)).chat_template == "of a file"
    assert configured(model, "--chat-template", "{{ messages }}").chat_template == "{{ messages }}"
    with pytest.raises(
        ConfigError, match=r"--chat-template none\.jinja: .*/none\.jinja can't be read \(No such"
    ):
        configured(model, "--chat-template", "none.jinja")


def test_a_chat_template_that_cannot_be_parsed_ends_the_start(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(model), "--port", "0", "--chat-template", "a\n{% if %}"]) == 2
    assert re.search(r"--chat-template: the template can't be read: .* \(line 2\)", capsys.readouterr().err)
