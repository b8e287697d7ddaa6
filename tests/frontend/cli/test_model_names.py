"""A model by its name: well-known names, quantizations of GGUF repositories, and addresses of the hub."""

from __future__ import annotations

import json
import re
from pathlib import Path

import arbora
import pytest
from arbora.frontend.cli.main import main
from arbora.frontend.model_files import file_download, known_models, model_source
from arbora.frontend.model_files.known_models import KNOWN_MODELS, known_names
from arbora.frontend.model_files.model_name import HubName, read_hub_name
from arbora.frontend.model_files.model_source import find_model, served_name
from arbora.runtime.errors import ConfigError
from fake_hub import MODEL, WEIGHTS, FakeHub
from gguf_vocabularies import write_tiny_file
from huggingface_hub import constants
from model_options import configured

COMMANDS = ["pull", "serve"]


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_tiny_file(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def gguf_hub(hub: FakeHub, gguf_file: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHub:
    """A repository of GGUF files alone; only the content of tiny-Q4_K_M and tiny-Q8_0 is a model."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    hub.files = {
        "README.md": b"text",
        "mmproj-F16.gguf": b"no model",
        "tiny-Q3_K_M.gguf": b"GGUF",
        "tiny-Q4_K_M.gguf": gguf_file,
        "tiny-Q8_0.gguf": gguf_file + b"\0" * 64,
        "BF16/tiny-BF16-00001-of-00002.gguf": b"GGUF" * 1000,
        "BF16/tiny-BF16-00002-of-00002.gguf": b"GGUF" * 1_000_000,
    }
    return hub


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a/b", HubName("a/b")),
        ("a/b:Q4_K_M", HubName("a/b", "Q4_K_M")),
        ("hf.co/a/b", HubName("a/b")),
        ("hf.co/a/b:Q4_K_M", HubName("a/b", "Q4_K_M")),
        ("HF.co/a/b", HubName("a/b")),
        ("https://huggingface.co/a/b", HubName("a/b")),
        ("https://huggingface.co/a/b/", HubName("a/b")),
        ("https://huggingface.co/a/b/tree/main", HubName("a/b")),
        ("https://huggingface.co/a/b?library=x", HubName("a/b")),
        ("https://huggingface.co/a/b/blob/main/c/d-Q8_0.gguf", HubName("a/b", "c/d-Q8_0.gguf")),
        ("a", None),
        ("a/b/c", None),
        ("a/b/", None),
        ("https://example.com/a/b", None),
    ],
)
def test_a_name_of_the_hub_is_read_in_the_forms_that_users_copy(text: str, expected: HubName | None) -> None:
    assert read_hub_name(text) == expected


def test_the_table_of_well_known_models_has_each_name_once_and_names_of_the_hub_alone() -> None:
    names = [name for model in KNOWN_MODELS for name in (model.name, *model.other_names)]
    assert sorted(names) == sorted(known_names()) and names == [name.lower() for name in names]
    for model in KNOWN_MODELS:
        assert model.source == "smollm2" or read_hub_name(model.source) is not None
        assert 0 < model.download_gb < model.memory_gb


def test_the_page_about_models_has_the_table() -> None:
    page = (Path(arbora.__file__).parent / "docs" / "models.md").read_text()
    rows = re.findall(r"^\| `(\S+)`.* \| ([\d.]+) GB \| ([\d.]+) GB \| (.*) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [
        (each.name, f"{each.download_gb:.2g}", f"{each.memory_gb:.2g}", each.use, each.license)
        for each in KNOWN_MODELS
    ]
    assert all(f" `{each.source}` " in page for each in KNOWN_MODELS[1:])


def test_a_well_known_name_is_the_model_of_its_repository(
    gguf_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = KNOWN_MODELS[2]._replace(source=f"{MODEL}:Q8_0")
    monkeypatch.setitem(known_models._BY_NAME, known.name, known)
    assert [path.name for path in find_model("QWEN3:0.6B").glob("*.gguf")] == ["tiny-Q8_0.gguf"]
    assert configured("Qwen3:0.6b").served_model_name == "qwen3:0.6b"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("QWEN3", "qwen3:8b"),
        ("Qwen3:0.6B", "qwen3:0.6b"),
        ("SmolLM2", "smollm2"),
        ("a/b", "a/b"),
        ("hf.co/a/b:Q8_0", "a/b:Q8_0"),
        ("https://huggingface.co/a/b", "a/b"),
    ],
)
def test_a_model_is_served_under_its_name(model: str, name: str) -> None:
    assert served_name(model) == name


@pytest.mark.parametrize(
    "name", [MODEL, f"{MODEL}:q4_k_m", f"hf.co/{MODEL}:Q4_K_M", f"{MODEL}:tiny-Q4_K_M.gguf"]
)
def test_a_quantization_is_downloaded_once_and_found_without_the_hub(
    gguf_hub: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["pull", name, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["file"] == f"{found['directory']}/tiny-Q4_K_M.gguf"
    assert gguf_hub.downloads == [("tiny-Q4_K_M.gguf", None)]
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert [path.name for path in find_model(name).glob("*.gguf")] == ["tiny-Q4_K_M.gguf"]
    assert [path.name for path in find_model(MODEL.upper()).glob("*.gguf")] == ["tiny-Q4_K_M.gguf"]


def test_a_split_file_is_downloaded_whole(gguf_hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", f"{MODEL}:bf16", "--json"]) == 0
    file = Path(json.loads(capsys.readouterr().out)["file"])
    assert file.name == "tiny-BF16-00001-of-00002.gguf"
    assert file.with_name("tiny-BF16-00002-of-00002.gguf").exists()


@pytest.mark.parametrize(
    ("free", "expected"),
    [(1 << 40, "tiny-Q6_K.gguf"), (6000, "tiny-Q5_0.gguf"), (10, "tiny-Q5_0.gguf")],
)
def test_without_q4_k_m_the_largest_quantized_file_that_fits_is_taken(
    hub: FakeHub,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    free: int,
    expected: str,
) -> None:
    sizes = {"Q3_K_S": 3000, "Q5_0": 4000, "Q6_K": 5000, "F16": 9000, "UD-IQ1_S": 1000}
    hub.files = {f"tiny-{tag}.gguf": b"x" * size for tag, size in sizes.items()}
    monkeypatch.setattr(model_source, "free_host_memory", lambda: free)
    assert main(["pull", MODEL, "--json"]) == 0
    assert Path(json.loads(capsys.readouterr().out)["file"]).name == expected


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("Q5_K_M", "it has no quantization Q5_K_M. Did you mean Q4_K_M? It has Q4_K_M, Q8_0, BF16."),
        ("Q3_K_M", "Arbora does not read files of Q3_K_M. It reads Q4_K_M, Q8_0, BF16."),
    ],
)
def test_a_quantization_that_a_repository_lacks_is_refused_with_those_that_it_has(
    gguf_hub: FakeHub, capsys: pytest.CaptureFixture[str], command: str, tag: str, expected: str
) -> None:
    assert main([command, f"{MODEL}:{tag}"]) == 2
    assert f"MODEL {MODEL}:{tag}: {expected}" in capsys.readouterr().err
    assert gguf_hub.downloads == []


def test_a_tag_of_a_repository_without_gguf_files_is_refused(
    hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", f"{MODEL}:Q4_K_M"]) == 2
    assert "it has no GGUF files, but safetensors. Leave :Q4_K_M out" in capsys.readouterr().err


def test_several_files_of_a_quantization_are_told_apart_by_their_names(
    hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.files = {"a-Q8_0.gguf": b"a", "b-Q8_0.gguf": b"b"}
    assert main(["pull", f"{MODEL}:Q8_0"]) == 2
    assert "Give the name of one in place of Q8_0: a-Q8_0.gguf, b-Q8_0.gguf." in capsys.readouterr().err
    assert main(["pull", f"{MODEL}:b-Q8_0.gguf"]) == 0


def test_an_architecture_that_is_not_served_is_refused_before_the_download(
    gguf_hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    gguf_hub.architecture = "rwkv7"
    assert main(["pull", MODEL]) == 2
    assert "GGUF files of the architecture rwkv7 are not served. Served are llama," in capsys.readouterr().err
    assert gguf_hub.downloads == []


def test_plan_reads_only_the_head_of_a_gguf_file(
    gguf_hub: FakeHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "tiny-Q4_K_M.gguf"
    size = len(gguf_hub.files[name])
    monkeypatch.setattr(file_download, "HEAD_BYTES", size - 100)
    for _ in range(2):
        assert main(["plan", MODEL, "--gpu", "h100-sxm", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["chosen"]["weight_bytes"] > 0
    assert gguf_hub.downloads == [(name, f"bytes=0-{size - 101}")]


def test_safetensors_come_before_gguf_files(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.files |= {"tiny-Q8_0.gguf": b"GGUF", "1_Pooling/config.json": b"{}", "onnx/model.json": b"{}"}
    assert main(["pull", f"https://huggingface.co/{MODEL.upper()}", "--json"]) == 0
    directory = Path(json.loads(capsys.readouterr().out)["directory"])
    assert (directory / "model.safetensors").read_bytes() == WEIGHTS
    assert (directory / "1_Pooling" / "config.json").exists() and not (directory / "onnx").exists()
    assert not (directory / "tiny-Q8_0.gguf").exists()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen3:0.7b", "qwen3 is known as qwen3:0.6b, qwen3:1.7b, qwen3:4b, qwen3:8b, qwen3:30b-a3b."),
        ("quen3:4b", "Did you mean qwen3:4b?"),
        ("smolm3", "Did you mean smollm3?"),
        ("unknown", "`arbora models` lists the names without an owner."),
    ],
)
def test_a_misspelt_well_known_name_gets_suggestions(
    capsys: pytest.CaptureFixture[str], command: str, name: str, expected: str
) -> None:
    assert main([command, name]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("command", [*COMMANDS, "plan", "rm"])
def test_a_path_in_the_home_of_an_unknown_user_is_explained(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command, "~nobody-here/model.gguf"]) == 2
    assert " ~nobody-here/model.gguf: " in capsys.readouterr().err


def test_a_file_of_a_well_known_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen3").mkdir()
    with pytest.raises(ConfigError, match=r"MODEL qwen3: .* has no config\.json"):
        find_model("qwen3")
    assert served_name("qwen3") == "qwen3"
