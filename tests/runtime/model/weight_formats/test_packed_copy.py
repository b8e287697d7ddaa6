"""Copies of packed weights, which later starts map."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from arbora.frontend.model_files.gguf.config import model_config
from arbora.kernels.linear import half_cpu
from arbora.kernels.linear.half_cpu import HalfCpuProduct
from arbora.runtime.errors import ConfigError
from arbora.runtime.gguf_file import GgufFile
from arbora.runtime.model.weight_formats import (
    Checkpoint,
    PackedCopy,
    Projection,
    ProjectionLoader,
    checkpoint_formats,
    packed_copy,
)
from checkpoints import random_model, save_model
from gguf_models import q4_k_m, write_gguf
from quantized_checkpoints import CASES, write_quantized
from served_model import ServedModel
from simulated_machine import SimulatedMachine

SIZES = {"q": (64, 64), "k": (32, 64)}
PROMPT = list(range(1, 40))
MAPPED = "the weights were packed before"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(packed_copy, "MIN_BYTES", 1)
    return tmp_path / "packed"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(random_model("qwen2"), tmp_path / "model")


def never(checkpoint: Checkpoint, name: str) -> None:
    raise AssertionError(f"{name} was read")


def start(model: Path, cache: Path | None, **fields: Any) -> list[int]:
    """Starts a model, waits until its copy is written, and returns a reply's tokens."""
    served = ServedModel(model, packed_weights=cache, **fields)
    for thread in threading.enumerate():
        if thread.name == packed_copy.THREAD:
            thread.join()
    return served.reply("a", PROMPT, 12)


def write_gguf_model(directory: Path) -> Path:
    directory.mkdir()
    write_gguf(directory / "model.gguf", "llama", q4_k_m)
    (directory / "config.json").write_text(json.dumps(model_config(GgufFile(directory / "model.gguf"))))
    return directory


def write_case(name: str) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        write_quantized(CASES[name], directory)
        return directory

    return write


def write_family(family: str) -> Callable[[Path], Path]:
    return lambda directory: save_model(random_model(family), directory)


@pytest.mark.parametrize(
    "write, fields",
    [
        (write_family("qwen2"), {}),
        (write_family("qwen2"), {"dtype": "bfloat16"}),
        (write_family("qwen2"), {"dtype": "bfloat16", "deterministic": True}),
        (write_family("qwen2"), {"quantize": "int4"}),
        (write_family("qwen3"), {"quantize": "int8", "dtype": "bfloat16"}),
        (write_family("gemma3"), {"quantize": "fp8"}),
        (write_family("mixtral"), {"quantize": "int4"}),
        (write_family("qwen2"), {"quantize": "int4", "model_impl": "transformers"}),
        (write_gguf_model, {}),
        (write_gguf_model, {"dtype": "bfloat16"}),
        (write_case("awq"), {}),
        (write_case("gptq ordered by activations"), {}),
        (write_case("fp8 in blocks"), {}),
    ],
)
def test_a_later_start_maps_the_copy_and_computes_the_same_tokens(
    write: Callable[[Path], Path],
    fields: dict[str, Any],
    tmp_path: Path,
    cache: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = write(tmp_path / "model")
    expected = start(model, None, **fields)
    assert start(model, cache, **fields) == expected
    (copy,) = cache.glob("*/*")
    assert copy.stat().st_mode & 0o777 == 0o600
    content = copy.read_bytes()
    with caplog.at_level(logging.INFO):
        assert start(model, cache, **fields) == expected
    assert MAPPED in caplog.text
    assert list(cache.glob("*/*")) == [copy] and copy.read_bytes() == content


def test_a_later_start_reads_no_weights(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = start(model, cache, quantize="int4")
    monkeypatch.setattr(Checkpoint, "read", never)
    assert start(model, cache, quantize="int4") == expected


@pytest.mark.skipif(not half_cpu.serves(torch.bfloat16), reason="oneDNN multiplies bfloat16")
def test_strips_of_bfloat16_are_mapped(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, file = Checkpoint(model), tmp_path / "copies" / "0" / "0.packed"
    q_and_k = [Projection(f"model.layers.0.self_attn.{name}_proj", *size) for name, size in SIZES.items()]

    def load(packed: PackedCopy) -> HalfCpuProduct:
        choose = checkpoint_formats(model, checkpoint).choose
        loader = ProjectionLoader(checkpoint, choose, torch.bfloat16, torch.device("cpu"), False, packed)
        product = loader.load_linear(*q_and_k).product
        assert isinstance(product, HalfCpuProduct)
        return product

    made = PackedCopy(file, "key")
    expected, writing = load(made), made.start_writing()
    assert writing is not None
    writing.join()
    monkeypatch.setattr(Checkpoint, "read", never)
    got = load(PackedCopy(file, "key"))
    assert torch.equal(got._weight, expected._weight)
    assert (got._outputs, got._inputs) == (expected._outputs, expected._inputs) == (96, 64)


def overwrite(file: Path, begin: int) -> None:
    """Overwrites the file's end, and restores its times."""
    found = file.stat()
    with file.open("r+b") as opened:
        opened.seek(begin)
        opened.write(bytes(found.st_size - begin))
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


def test_a_later_start_does_not_need_the_weights_of_a_gguf_file(tmp_path: Path, cache: Path) -> None:
    model = write_gguf_model(tmp_path / "model")
    expected = start(model, cache)
    first = min(place.begin for place in GgufFile(model / "model.gguf").tensors.values())
    overwrite(model / "model.gguf", first)
    assert start(model, cache) == expected


@pytest.mark.parametrize("change", ["mtime", "content", "config", "dtype", "quantize"])
def test_a_copy_of_another_state_of_the_model_is_not_used(
    change: str, model: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(model, cache, dtype="bfloat16")
    weights, config = model / "model.safetensors", model / "config.json"
    fields = {"dtype": "bfloat16"}
    match change:
        case "mtime":
            os.utime(weights, (1, 1))
        case "content":
            save_model(random_model("qwen2", seed=1), model)
        case "config":
            config.write_text(json.dumps({**json.loads(config.read_text()), "rms_norm_eps": 0.1}))
        case "dtype":
            fields = {"dtype": "float16"}
        case "quantize":
            fields = {"quantize": "int4"}
    expected = start(model, None, **fields)
    with caplog.at_level(logging.INFO):
        assert start(model, cache, **fields) == expected
    assert MAPPED not in caplog.text
    assert len(list(cache.glob("*/*"))) == 2


def test_a_copy_of_a_model_that_is_loaded_in_another_way_is_not_used(
    model: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """transformers multiplies by each projection alone, so its products have other names and tensors."""
    start(model, cache, quantize="int4")
    with caplog.at_level(logging.INFO):
        start(model, cache, quantize="int4", model_impl="transformers")
        assert MAPPED not in caplog.text
        start(model, cache, quantize="int4", model_impl="transformers")
    assert caplog.text.count(MAPPED) == 1
    assert len(list(cache.glob("*/*"))) == 2


NAME_SCRIPT = """
import sys
from pathlib import Path
import torch
from arbora.runtime.model.weight_formats import Checkpoint, open_packed_copy
model = Path(sys.argv[1])
checkpoint = Checkpoint(model)
arguments = model, checkpoint.files[0], checkpoint, torch.bfloat16, False, ""
print(open_packed_copy(Path("/proc/packed"), *arguments)._file)
"""


def test_a_copy_is_for_the_processor_for_which_kernels_are_compiled(model: Path) -> None:
    """numba can compile for another processor than this one. Its kernels then expect other layouts."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", NAME_SCRIPT, str(model)]
    haswell = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"}
    names = {
        subprocess.run(command, env=environment | more, check=True, stdout=subprocess.PIPE).stdout
        for more in ({}, haswell, {})
    }
    assert len(names) == 2


@pytest.mark.parametrize("name, copies", [("ab" * 32, 1), ("model.safetensors", 2)])
def test_a_file_of_the_hub_is_known_by_its_name(
    name: str, copies: int, model: Path, cache: Path, tmp_path: Path
) -> None:
    """Any other file may get another content, also if it lies in a directory of the same name."""
    weights, blobs = model / "model.safetensors", tmp_path / "blobs"
    blobs.mkdir()
    weights.rename(blobs / name)
    weights.symlink_to(blobs / name)
    start(model, cache)
    os.utime(blobs / name, (1, 1))
    start(model, cache)
    assert len(list(cache.glob("*/*"))) == copies


def test_a_change_of_the_code_makes_another_copy(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(model, cache)
    monkeypatch.setattr(packed_copy, "version", lambda folder: "another")
    start(model, cache)
    assert len(list(cache.glob("*/*"))) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[:100],
        lambda content: content[:10],
        lambda content: b"",
        lambda content: content + b"x",
        lambda content: b"X" + content[1:],
        lambda content: content.replace(b'"begin":', b'"begun":'),
    ],
)
def test_a_damaged_copy_is_ignored_and_written_again(
    damage: Callable[[bytes], bytes], model: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = start(model, cache, quantize="int4")
    (copy,) = cache.glob("*/*")
    content = copy.read_bytes()
    copy.write_bytes(damage(content))
    assert start(model, cache, quantize="int4") == expected
    (warning,) = [each for each in caplog.messages if "packed copy" in each]
    assert str(copy) in warning and "will be written again" in warning
    assert copy.read_bytes() == content


def test_a_copy_of_another_model_is_ignored(model: Path, cache: Path, tmp_path: Path) -> None:
    other = save_model(random_model("qwen2", seed=1), tmp_path / "other")
    expected = start(other, None, quantize="int4")
    start(model, cache, quantize="int4")
    (first,) = cache.glob("*/*")
    start(other, cache, quantize="int4")
    (second,) = (each for each in cache.glob("*/*") if each != first)
    second.write_bytes(first.read_bytes())
    assert start(other, cache, quantize="int4") == expected


def test_a_directory_that_cant_be_written_costs_only_the_copy(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = start(model, None, quantize="int4")
    for place in (Path("/proc/packed"), Path("/dev/null/packed")):
        assert start(model, place, quantize="int4") == expected
    warnings = [each for each in caplog.messages if "are not kept for the next start" in each]
    assert len(warnings) == 2


def test_a_full_disk_costs_only_the_copy(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fill(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    expected = start(model, None, quantize="int4")
    monkeypatch.setattr(os, "fsync", fill)
    assert start(model, cache, quantize="int4") == expected
    assert "No space left on device" in caplog.text
    assert not list(cache.glob("*/*"))


def test_a_model_of_more_than_a_tenth_of_the_free_disk_is_not_kept(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(packed_copy, "SHARE_OF_COPY", 1 << 60)
    with caplog.at_level(logging.INFO):
        start(model, cache, quantize="int4")
    assert "more than a tenth of the" in caplog.text
    assert not list(cache.glob("*/*"))


@pytest.mark.parametrize("limit", ["MAX_COPIES", "SHARE_OF_COPIES"])
def test_the_copies_used_longest_ago_are_removed(
    limit: str, model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(model, cache)
    (first,) = cache.glob("*/*")
    start(model, cache, quantize="int8")
    os.utime(first, (1, 1))
    if limit == "MAX_COPIES":
        monkeypatch.setattr(packed_copy, "MAX_COPIES", 2)
        start(model, cache, quantize="int4")
        assert len(list(cache.glob("*/*.packed"))) == 2
    else:
        monkeypatch.setattr(packed_copy, "SHARE_OF_COPIES", 1 << 60)
        start(model, cache, quantize="int4")
        assert len(list(cache.glob("*/*.packed"))) == 1
    assert not first.exists()


def test_what_a_killed_server_wrote_is_removed(model: Path, cache: Path) -> None:
    start(model, cache)
    (copy,) = cache.glob("*/*")
    abandoned, written = (copy.parent / f"{packed_copy.UNFINISHED}{name}" for name in ("a", "b"))
    abandoned.touch()
    with written.open("wb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        start(model, cache, quantize="int4")
        assert written.exists() and not abandoned.exists()


def test_a_copy_that_is_being_renamed_is_not_taken_for_abandoned(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def clean_and_replace(source: str, target: Path) -> None:
        """Another server cleans up at the last moment."""
        assert not list(packed_copy._find_copies(cache, target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", clean_and_replace)
    start(model, cache, quantize="int4")
    assert [copy.suffix for copy in cache.glob("*/*")] == [packed_copy.SUFFIX]


def test_using_a_copy_makes_it_the_last_used(model: Path, cache: Path) -> None:
    start(model, cache)
    (copy,) = cache.glob("*/*")
    os.utime(copy, (1, 1))
    start(model, cache)
    assert copy.stat().st_mtime > 1


def test_small_models_have_no_copy(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    start(model, cache)
    assert not cache.exists()


SCRIPT = """
import sys, threading
from pathlib import Path
from arbora.runtime.model.weight_formats import packed_copy
from served_model import ServedModel
packed_copy.MIN_BYTES = 1
served = ServedModel(Path(sys.argv[1]), packed_weights=Path(sys.argv[2]), dtype="bfloat16")
print(served.reply("a", list(range(1, 40)), 12))
for thread in threading.enumerate():
    if thread.name == packed_copy.THREAD:
        thread.join()
"""


def test_two_servers_may_write_a_copy_at_the_same_time(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the processes use compiled kernels of the user's cache
    monkeypatch.setattr(packed_copy, "MIN_BYTES", 1)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SCRIPT, str(model), str(cache)]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    replies = [process.communicate()[0] for process in both]
    assert replies[0] == replies[1] == f"{start(model, None, dtype='bfloat16')}\n"
    assert len(list(cache.glob("*/*"))) == 1
    assert f"{start(model, cache, dtype='bfloat16')}\n" == replies[0]


def test_mapped_weights_count_as_used_memory(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(model, cache, quantize="int4")
    (copy,) = cache.glob("*/*")
    free = 0
    monkeypatch.setattr("arbora.runtime.model.memory_plan.free_memory", lambda device: free)
    free = copy.stat().st_size + (2 << 20)
    start(model, cache, quantize="int4")
    free = copy.stat().st_size + (1 << 20)
    with pytest.raises(ConfigError, match="beside the model only"):
        start(model, cache, quantize="int4")
    free = copy.stat().st_size - 1
    with pytest.raises(ConfigError, match=r"the model's weights take .*, but only .* of memory are free"):
        start(model, cache, quantize="int4")


def test_weights_that_are_copied_to_several_nodes_are_not_counted_twice(
    model: Path, cache: Path, machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system counts the copies as used, and the file's pages as free."""
    start(model, cache, quantize="int4")
    (copy,) = cache.glob("*/*")
    machine.has_sockets(2, 1)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    free = (3 << 19) + copy.stat().st_size // 2  # the KV cache needs 1.5 MiB
    monkeypatch.setattr("arbora.runtime.model.memory_plan.free_memory", lambda device: free)
    start(model, cache, quantize="int4")
