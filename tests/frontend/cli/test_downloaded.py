"""`arbora list`, `rm` and `models`: what was downloaded, what is deleted, what fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from arbora.frontend.cli import models as models_command
from arbora.frontend.cli.main import main
from arbora.frontend.model_files.known_models import KNOWN_MODELS
from arbora.frontend.model_files.packaged_models import PACKAGED
from arbora.runtime.cache_directory import cache_directory, packed_directory
from fake_hub import FILES, MODEL, FakeHub
from huggingface_hub import constants
from terminal import terminal


@pytest.fixture
def caches(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return hub


@pytest.fixture
def quantizations(caches: FakeHub) -> FakeHub:
    caches.files = {"t-Q4_K_M.gguf": b"4" * 4000, "t-Q8_0.gguf": b"8" * 8000}
    for tag in ("Q4_K_M", "Q8_0"):
        assert main(["pull", f"{MODEL}:{tag}", "--json"]) == 0
    return caches


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["list", "--json"]) == 0
    models: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["models"]
    return models


def test_without_downloads_the_list_is_empty(caches: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys) == []
    assert main(["list"]) == 0
    assert "no model was downloaded" in capsys.readouterr().out


def test_a_checkpoint_is_one_model_with_its_bytes_and_directory(
    caches: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", MODEL, "--json"]) == 0
    directory = json.loads(capsys.readouterr().out)["directory"]
    (found,) = listed(capsys)
    size = sum(len(FILES[name]) for name in ("config.json", "tokenizer.json", "model.safetensors"))
    assert (found["name"], found["bytes"], found["path"]) == (MODEL, size, directory)
    assert found["is_complete"] and found["last_used"] > 1e9
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert MODEL in said and "  1MiB  " in said and directory in said


def test_each_quantization_is_a_model_and_deleted_alone(
    quantizations: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {each["name"]: each["bytes"] for each in listed(capsys)}
    assert found == {f"{MODEL}:Q4_K_M": 4000, f"{MODEL}:Q8_0": 8000}
    assert main(["rm", f"{MODEL}:q8_0", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"deleted": [f"{MODEL}:Q8_0"], "freed_bytes": 8000}
    kept = [path for path in Path(constants.HF_HUB_CACHE).rglob("blobs/*") if path.is_file()]
    assert [path.stat().st_size for path in kept] == [4000]
    assert [each["name"] for each in listed(capsys)] == [f"{MODEL}:Q4_K_M"]
    assert main(["rm", f"{MODEL}:Q4_K_M", "--yes"]) == 0
    assert "3.9KiB are free again" in capsys.readouterr().out
    assert not [*Path(constants.HF_HUB_CACHE).glob("models--*")]


def test_deleting_a_model_deletes_its_packed_copies(
    quantizations: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    root = cache_directory("packed")
    copies = {
        each["name"]: packed_directory(root, Path(each["path"])) / "0.packed" for each in listed(capsys)
    }
    assert len(set(copies.values())) == 2
    for copy in copies.values():
        copy.parent.mkdir(parents=True)
        copy.touch()
    assert main(["rm", f"{MODEL}:Q8_0", "--yes"]) == 0
    assert [copies[f"{MODEL}:{tag}"].exists() for tag in ("Q4_K_M", "Q8_0")] == [True, False]


def test_deleting_a_checkpoint_deletes_the_copies_that_are_named_by_its_first_file(
    caches: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", MODEL, "--json"]) == 0
    directory = Path(json.loads(capsys.readouterr().out)["directory"])
    copies = packed_directory(cache_directory("packed"), directory / "model.safetensors")
    copies.mkdir(parents=True)
    assert main(["rm", MODEL, "--yes"]) == 0
    assert copies.parent.exists() and not copies.exists()


def test_a_quantization_with_the_content_of_a_deleted_one_is_kept(
    caches: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    caches.files = {"t-Q4_0.gguf": b"4" * 4000, "t-Q4_1.gguf": b"4" * 4000}
    for tag in ("Q4_0", "Q4_1"):
        assert main(["pull", f"{MODEL}:{tag}", "--json"]) == 0
    assert main(["rm", f"{MODEL}:Q4_0", "--yes"]) == 0
    (found,) = listed(capsys)
    assert found["name"] == f"{MODEL}:Q4_1" and len(Path(found["path"]).read_bytes()) == 4000
    assert main(["pull", f"{MODEL}:Q4_0", "--json"]) == 0
    assert main(["rm", MODEL, "--yes"]) == 0
    assert not [*Path(constants.HF_HUB_CACHE).glob("models--*")]


def test_a_repository_without_a_tag_is_deleted_whole(
    quantizations: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rm", f"hf.co/{MODEL.upper()}", "--yes", "--json"]) == 0
    assert listed(capsys) == []


def test_a_download_that_was_ended_is_listed_and_deleted(
    caches: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    blobs = Path(constants.HF_HUB_CACHE) / "models--team--tiny" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / ("0" * 64 + ".incomplete")).write_bytes(b"x" * 5000)
    (found,) = listed(capsys)
    assert (found["name"], found["bytes"], found["is_complete"]) == (MODEL, 5000, False)
    assert main(["list"]) == 0
    assert f"{MODEL} (in part)" in capsys.readouterr().out
    assert main(["rm", MODEL, "--yes"]) == 0
    assert not blobs.exists()


def test_a_file_of_a_package_is_listed_under_its_short_name(
    caches: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    file = PACKAGED["smollm2"].path
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x" * 100)
    assert [(each["name"], each["path"]) for each in listed(capsys)] == [("smollm2", str(file))]
    assert main(["rm", "SmolLM2", "--yes"]) == 0
    assert not file.exists()


def test_what_was_not_downloaded_is_not_deleted(
    quantizations: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(b"mine")
    for name, expected in (
        (str(own), f"NAME {own}: this is no downloaded model, so it is not deleted."),
        (str(tmp_path), "this is no downloaded model"),
        (f"{MODEL}:Q4_K", f"no such model was downloaded. Did you mean {MODEL}:Q4_K_M?"),
    ):
        assert main(["rm", name, "--yes"]) == 2
        assert expected in capsys.readouterr().err
    assert own.exists() and len(listed(capsys)) == 2


def test_a_listed_path_names_its_model(quantizations: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(each["path"] for each in listed(capsys) if each["name"].endswith("Q8_0"))
    assert main(["rm", path, "--yes"]) == 0
    assert [each["name"] for each in listed(capsys)] == [f"{MODEL}:Q4_K_M"]


def test_without_a_terminal_a_deletion_needs_yes(
    quantizations: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rm", MODEL]) == 2
    assert "needs --yes" in capsys.readouterr().err
    assert len(listed(capsys)) == 2


@pytest.mark.parametrize(("answer", "left"), [("n", 2), ("", 2), ("y", 1)])
def test_a_terminal_is_asked(
    quantizations: FakeHub, capsys: pytest.CaptureFixture[str], answer: str, left: int
) -> None:
    with terminal(["rm", f"{MODEL}:Q8_0"], HF_HUB_CACHE=constants.HF_HUB_CACHE) as shown:
        shown.wait_for(f"delete {MODEL}:Q8_0 (7.8KiB)? [y/N] ")
        shown.type(f"{answer}\r")
        assert shown.exit_code() == (1 if left == 2 else 0)
    assert len(listed(capsys)) == left


def test_memory_is_read_at_a_rate_that_memory_can_have() -> None:
    assert 1e8 < models_command.measure_memory_rate() < 1e13


@pytest.mark.parametrize(
    ("device", "gigabytes", "rate", "suggested"),
    [
        ("cpu", 64, 15, "gemma3:1b"),
        ("cpu", 64, 40, "qwen3:30b-a3b"),
        ("cpu", 8, 40, "qwen3:4b"),
        ("cpu", 64, 0.5, "smollm2"),
        ("cpu", 2.5, 30, "gemma3:1b"),
        ("cuda", 24, 0, "qwen3:30b-a3b"),
        ("cpu", 0.1, 30, None),
    ],
)
def test_the_largest_model_that_fits_and_is_fast_enough_is_suggested(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    device: str,
    gigabytes: float,
    rate: float,
    suggested: str | None,
) -> None:
    monkeypatch.setattr(models_command, "visible_device", lambda: device)
    monkeypatch.setattr(models_command, "measure_memory_rate", lambda: rate * 1e9)
    monkeypatch.setattr(models_command, "_free_memory", lambda device: int(gigabytes * 1e9))
    assert main(["models", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["suggested"] == suggested
    assert [each["name"] for each in found["models"]] == [model.name for model in KNOWN_MODELS]
    assert {each["name"] for each in found["models"] if each["fits"]} == {
        model.name for model in KNOWN_MODELS if model.memory_gb <= gigabytes
    }
    speeds = [each["tokens_per_s"] for each in found["models"]]
    assert all(speed is None for speed in speeds) if device == "cuda" else all(speeds)
    assert main(["models"]) == 0
    said = capsys.readouterr().out
    assert f"serve {suggested}`" in said if suggested else "none fits" in said
