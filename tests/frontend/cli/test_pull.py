"""`arbora pull` from a local hub: the files, a continued download, the bar, and errors with their fixes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path

import pytest
from arbora.frontend.cli.main import main
from arbora.frontend.model_files import file_download, model_source
from arbora.frontend.model_files.model_source import find_model
from fake_hub import COMMIT, CONFIG, FILES, GATED, MODEL, PIECE, WEIGHTS, FakeHub
from huggingface_hub import constants
from terminal import terminal


def _blobs() -> Path:
    """The directory of the model's files in the cache, by their digests."""
    found = Path(constants.HF_HUB_CACHE) / "models--team--tiny" / "blobs"
    found.mkdir(parents=True, exist_ok=True)
    return found


def test_a_model_is_downloaded_and_found_afterwards(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", MODEL]) == 0
    said = capsys.readouterr()
    directory = Path(said.out.strip().rpartition(" is in ")[2])
    assert (directory / "model.safetensors").read_bytes() == WEIGHTS
    assert not (directory / "README.md").exists()
    assert "1MiB to download of 1MiB, 3 of 3 files" in said.err and f"serve {MODEL}`" in said.err
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
def test_the_refusal_of_a_model_without_weights_has_no_lines_of_the_hubs_library(
    hub: FakeHub, tmp_path: Path, command: str
) -> None:
    hub.files = {"model.bin": b"GGUF"}
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "own")}
    refused = subprocess.run(
        [sys.executable, "-m", "arbora", command, MODEL], env=environment, capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"arbora: error: MODEL {MODEL} has no *.safetensors and no *.gguf file")
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


def test_a_download_of_an_ended_command_continues_at_its_byte(hub: FakeHub, tmp_path: Path) -> None:
    weights = bytes(range(256)) * (96 << 10)  # 24 MiB; the hub's library writes pieces of 10 MiB
    hub.files["model.safetensors"] = weights
    hub.delay_s = 0.01
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "own")}
    command = [sys.executable, "-m", "arbora", "pull", MODEL, "--json"]
    first = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    partial = f"own/*/blobs/{hub.digest('model.safetensors')}.incomplete"  # smaller files come and go
    while not (left := [*tmp_path.glob(partial)]) or left[0].stat().st_size == 0:
        assert first.poll() is None
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    kept = left[0].stat().st_size
    hub.downloads.clear()
    hub.sent.clear()
    hub.delay_s = 0.0
    second = subprocess.run(command, env=environment, capture_output=True, check=True)
    said = json.loads(second.stdout)
    assert (Path(said["directory"]) / "model.safetensors").read_bytes() == weights
    assert ("model.safetensors", f"bytes={kept}-") in hub.downloads
    assert kept > 0 and hub.sent["model.safetensors"] == len(weights) - kept
    assert len(weights) - kept <= said["downloaded_bytes"] < len(weights)


def test_a_file_with_another_digest_is_deleted(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.digests["model.safetensors"] = "0" * 64
    assert main(["pull", MODEL]) == 2
    said = capsys.readouterr().err
    assert "model.safetensors is not the file that the hub lists: its SHA-256 is " in said
    assert f"not {'0' * 64}. It was deleted." in said
    assert not [*Path(constants.HF_HUB_CACHE).rglob("0000*")]
    assert main(["serve", MODEL]) == 2  # what was deleted is not served


def test_more_bytes_than_the_file_has_are_downloaded_anew(
    hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    partial = _blobs() / f"{hub.digest('model.safetensors')}.incomplete"
    partial.write_bytes(b"x" * (len(WEIGHTS) + 10))
    assert main(["pull", MODEL, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (Path(said["directory"]) / "model.safetensors").read_bytes() == WEIGHTS
    assert said["downloaded_bytes"] == said["bytes"]


def test_a_file_that_another_process_completes_meanwhile_leaves_no_partial_one(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def complete(model: str, revision: str | None) -> None:
        (_blobs() / hub.digest("model.safetensors")).write_bytes(WEIGHTS)

    monkeypatch.setattr(model_source, "check_before_download", complete)
    assert main(["pull", MODEL]) == 0
    assert "model.safetensors" not in [name for name, _ in hub.downloads]
    assert not [*_blobs().glob("*.incomplete")]


def test_a_process_that_waited_for_a_file_with_another_digest_downloads_it_itself(
    hub: FakeHub, tmp_path: Path
) -> None:
    path = tmp_path / "blobs" / "a.incomplete"
    kept = []

    def wait() -> None:
        with file_download._open_alone(path) as file:
            kept.append((file.tell(), path.exists()))

    with file_download._open_alone(path) as file:
        file.write(b"wrong")
        file.flush()
        other = threading.Thread(target=wait)
        other.start()
        time.sleep(0.1)  # the other has opened the file, and waits for its lock
        path.unlink()
    other.join()
    assert kept == [(0, True)]


def test_a_digest_that_is_a_path_is_refused(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    other = Path(constants.HF_HUB_CACHE) / "own.incomplete"
    _blobs()
    other.write_bytes(b"mine")
    hub.digests["model.safetensors"] = "../../own"
    assert main(["pull", MODEL]) == 2
    said = capsys.readouterr().err
    assert f"MODEL {MODEL}: the hub states the digest '../../own' for model.safetensors" in said
    assert other.read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (403, f"its owner asks you to accept a licence first, on http://.*/{MODEL}. Then set HF_TOKEN"),
        (401, f"status 401.. Accept its licence on http://.*/{MODEL}, and set HF_TOKEN"),
    ],
)
def test_a_gated_model_says_to_accept_its_licence_and_to_set_a_token(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], status: int, expected: str
) -> None:
    hub.refuses_files = status
    assert main(["pull", MODEL]) == 2
    assert re.search(expected, capsys.readouterr().err)


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
        ((GATED,), "/team/gated. Then set HF_TOKEN to your token, or log in with `hf auth login`"),
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
    assert "and the hub can't be reached (" in said and "Check the network, HF_ENDPOINT" in said
    assert "`arbora serve smollm2` needs only a Python package, and `arbora serve` alone" in said


def test_a_model_without_safetensors_is_refused(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    del hub.files["model.safetensors"]
    assert main(["pull", MODEL]) == 2
    assert "has no *.safetensors and no *.gguf file on the hub" in capsys.readouterr().err


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
