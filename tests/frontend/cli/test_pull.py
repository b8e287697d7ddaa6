"""`arbora pull` from a local hub: the files, a continued download, the bar, and errors with their fixes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
from arbora.frontend.cli.main import main
from arbora.frontend.model_files.model_source import find_model
from fake_hub import COMMIT, GATED, MODEL, PIECE, FakeHub, fake_hub
from huggingface_hub import constants
from terminal import terminal

WEIGHTS = bytes(range(256)) * 4096
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
}
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": b"{}",
    "model.safetensors": WEIGHTS,
    "README.md": b"not needed",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with fake_hub(FILES) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield hub


def test_a_model_is_downloaded_and_found_afterwards(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", MODEL]) == 0
    said = capsys.readouterr()
    directory = Path(said.out.strip().rpartition(" is in ")[2])
    assert (directory / "model.safetensors").read_bytes() == WEIGHTS
    assert not (directory / "README.md").exists()
    assert "1MiB to download in 3 files" in said.err and f"serve {MODEL}`" in said.err
    assert main(["pull", MODEL, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "model": MODEL,
        "revision": COMMIT,
        "directory": str(directory),
        "downloaded_bytes": 0,
        "bytes": sum(len(FILES[name]) for name in ("config.json", "tokenizer.json", "model.safetensors")),
    }


@pytest.mark.parametrize("command", ["pull", "serve"])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"architectures": ["BloomForCausalLM"], "model_type": "bloom"},
            "takes no positions of its tokens",
        ),
        ({"quantization_config": {"quant_method": "hqq"}}, "quant_method hqq is not supported"),
    ],
)
def test_an_unsupported_model_is_refused_before_its_weights_are_downloaded(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], command: str, fields: dict[str, object], expected: str
) -> None:
    hub.files["config.json"] = json.dumps(CONFIG | fields).encode()
    assert main([command, MODEL]) == 2
    assert expected in capsys.readouterr().err
    assert [name for name, _ in hub.downloads] == ["config.json"]


@pytest.mark.parametrize("command", ["pull", "serve"])
def test_a_model_of_gguf_files_is_refused_with_what_to_do(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    hub.files = {"config.json": b'{"model_type": "llama"}', "model.Q4_K_M.gguf": b"GGUF"}
    assert main([command, MODEL]) == 2
    assert "If it has GGUF files, choose one" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["pull", "serve"])
def test_the_refusal_of_a_model_of_gguf_files_alone_has_no_lines_of_the_hubs_library(
    hub: FakeHub, tmp_path: Path, command: str
) -> None:
    hub.files = {"model.Q4_K_M.gguf": b"GGUF"}
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "own")}
    refused = subprocess.run(
        [sys.executable, "-m", "arbora", command, MODEL], env=environment, capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"arbora: error: MODEL {MODEL} has no *.safetensors file on the hub.")
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["pull", "serve", "plan"])
def test_a_name_without_an_owner_is_no_hub_id_for_any_command(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command, "gpt2"]) == 2
    said = capsys.readouterr().err
    assert "MODEL gpt2: " in said
    assert "this is not a hub id, which has an owner and a name, such as Qwen/Qwen3-0.6B." in said


def test_options_are_checked_before_a_model_is_downloaded(
    hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        for options, expected in (
            (("--port", str(other.getsockname()[1])), "can't listen there"),
            (("--host", "unix:/no/where/a.sock"), "--host unix:/no/where/a.sock: can't listen there"),
            (("--device", "cpu", "--kv-dtype", "fp8"), "--kv-dtype fp8: only the CUDA kernels"),
        ):
            assert main(["serve", MODEL, *options]) == 2
            assert expected in capsys.readouterr().err
    assert hub.downloads == []


def test_a_model_in_the_cache_is_found_without_a_check(hub: FakeHub) -> None:
    directory = find_model(MODEL)
    hub.downloads.clear()
    (directory / "config.json").resolve().write_text("{}")  # which no check would let pass
    assert find_model(MODEL) == directory
    assert hub.downloads == []


def test_a_name_that_is_no_hub_id_is_explained(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "team/foo--bar"]) == 2
    assert "MODEL team/foo--bar: this is not a hub id" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a" * 300, f"{'a' * 300}/b"], ids=["one word", "with an owner"])
def test_a_name_that_is_too_long_for_a_file_is_explained(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    for command in ("pull", "serve", "plan"):
        assert main([command, name]) == 2
        assert "this is not a hub id" in capsys.readouterr().err


def test_a_broken_connection_continues_where_it_stopped(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", PIECE)
    hub.breaks_after = 4 * PIECE
    assert main(["pull", MODEL, "--json"]) == 0
    directory = Path(json.loads(capsys.readouterr().out)["directory"])
    assert (directory / "model.safetensors").read_bytes() == WEIGHTS
    assert ("model.safetensors", f"bytes={4 * PIECE}-") in hub.downloads


def test_complete_files_are_not_downloaded_again(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", MODEL, "--json"]) == 0
    directory = Path(json.loads(capsys.readouterr().out)["directory"])
    lost = directory / "config.json"
    lost.resolve().unlink()
    lost.unlink()
    hub.downloads.clear()
    assert main(["pull", MODEL, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["downloaded_bytes"] == len(FILES["config.json"])
    assert hub.downloads == [("config.json", None)]
    assert lost.read_bytes() == FILES["config.json"]


def test_a_terminal_shows_a_bar_of_bytes(hub: FakeHub, tmp_path: Path) -> None:
    hub.delay_s = 0.03
    with terminal(["pull", MODEL], HF_ENDPOINT=hub.url, HF_HUB_CACHE=tmp_path / "own") as shown:
        shown.wait_for(f"{MODEL}: ")
        said = shown.wait_for(" is in ")
        shown.wait_for("serve it with")
        assert shown.exit_code() == 0
    assert "1.00M/1.00M" in said and "iB/s" in said and f"{MODEL}: 100%" in said
    assert "Reconstruct" not in said and "Fetching" not in said


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("team/nothing",), "the hub has no such model that you may read"),
        ((GATED,), "its owner asks you to accept terms first; then log in with `hf auth login`"),
        ((MODEL, "--revision", "v9"), "--revision v9: the model has no such branch, tag or commit"),
        (
            ("no hub id",),
            "MODEL no hub id: this is not a hub id, which has an owner and a name, such as Qwen/",
        ),
        (("smolm2",), "such as Qwen/Qwen3-0.6B. Did you mean smollm2?"),
        (("./x.gguf",), "MODEL ./x.gguf: a path needs no download. Use `arbora serve ./x.gguf`."),
    ],
)
def test_what_the_hub_refuses_is_explained(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: str
) -> None:
    assert main(["pull", *arguments]) == 2
    assert expected in capsys.readouterr().err


def test_a_hub_out_of_reach_is_an_error(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert main(["pull", MODEL]) == 2
    said = capsys.readouterr().err
    assert "and the hub can't be reached (" in said and "check the network, HF_ENDPOINT" in said


def test_a_model_without_safetensors_is_refused(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    del hub.files["model.safetensors"]
    assert main(["pull", MODEL]) == 2
    assert "has no *.safetensors file on the hub" in capsys.readouterr().err


def test_a_full_disk_is_known_before_the_download(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1 << 30, 1 << 30, 1000))
    assert main(["pull", MODEL]) == 2
    said = capsys.readouterr().err
    assert "its disk has only 1000B free" in said.replace(",", "") and "set HF_HUB_CACHE" in said
    assert [name for name, _ in hub.downloads] == ["config.json"]


def test_a_disk_that_fills_up_during_the_download_is_explained(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object, **settings: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.snapshot_download", full)
    assert main(["pull", MODEL]) == 2
    assert "the disk of the hub's cache is full. Free space there" in capsys.readouterr().err
