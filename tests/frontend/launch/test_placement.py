"""The machine is divided among replicas: cores, quotas and memory, or GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from arbora.frontend.launch import placement
from arbora.frontend.launch.child_process import Place
from arbora.frontend.launch.placement import (
    MIN_KV_BYTES,
    PROCESS_BYTES,
    WEIGHTS_FACTOR,
    divide_cores,
    find_gpus,
    host_models,
    place_replicas,
)
from arbora.runtime.config import ServeConfig
from arbora.runtime.errors import ConfigError
from arbora.runtime.processes.child import CPUS_VARIABLE, RANK_VARIABLE
from arbora.runtime.system_cores import Core, Quota
from arbora.runtime.system_memory import SHARERS_VARIABLE

CORES = [Core((number, number + 4), number // 2) for number in range(4)]


def config(**fields: Any) -> ServeConfig:
    return ServeConfig(model=Path("/nowhere"), served_model_name="m", **fields)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(placement, "find_cores", lambda: CORES)
    monkeypatch.setattr(placement, "find_quota", lambda: None)
    monkeypatch.setattr(placement, "free_host_memory", lambda: 10 << 30)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return monkeypatch


def test_one_replica_gets_the_whole_machine(machine: pytest.MonkeyPatch) -> None:
    assert place_replicas(config()) == (Place(),)


def test_cores_are_divided_by_memory_nodes(machine: pytest.MonkeyPatch) -> None:
    placed = place_replicas(config(replicas=2))
    assert [each.environment[CPUS_VARIABLE] for each in placed] == ["0,4,1,5", "2,6,3,7"]


def test_ranks_divide_the_cores_of_their_replica(machine: pytest.MonkeyPatch) -> None:
    (placed,) = place_replicas(config(tp=2))
    assert placed.environment == {SHARERS_VARIABLE: "2"}
    assert placed.ranks == (
        {RANK_VARIABLE: "0", CPUS_VARIABLE: "0,4,1,5", "OMP_NUM_THREADS": "2"},
        {RANK_VARIABLE: "1", CPUS_VARIABLE: "2,6,3,7", "OMP_NUM_THREADS": "2"},
    )
    first, second = place_replicas(config(tp=2, replicas=2))
    assert first.environment == {SHARERS_VARIABLE: "4", CPUS_VARIABLE: "0,4,1,5"}
    assert [rank[CPUS_VARIABLE] for rank in (*first.ranks, *second.ranks)] == ["0,4", "1,5", "2,6", "3,7"]


def test_all_ranks_have_as_many_threads(machine: pytest.MonkeyPatch) -> None:
    (placed,) = place_replicas(config(tp=3))
    assert [rank["OMP_NUM_THREADS"] for rank in placed.ranks] == ["1", "1", "1"]
    machine.setattr(placement, "find_quota", lambda: Quota(2.0, Path("cpu.max")))
    (placed,) = place_replicas(config(tp=2))
    assert [rank["OMP_NUM_THREADS"] for rank in placed.ranks] == ["1", "1"]
    machine.setenv("OMP_NUM_THREADS", "2")
    (placed,) = place_replicas(config(tp=2))
    assert all("OMP_NUM_THREADS" not in rank for rank in placed.ranks)


def test_the_kv_memory_of_all_ranks_must_fit(machine: pytest.MonkeyPatch) -> None:
    message = "--kv-memory 3GiB: 2 replicas of 2 ranks take 12GiB, but only 10GiB are free"
    with pytest.raises(ConfigError, match=message):
        place_replicas(config(tp=2, replicas=2, kv_memory=3 << 30))


def test_replicas_share_cores_if_there_are_too_few() -> None:
    assert divide_cores(CORES[:2], 3) == [[CORES[0]], [CORES[1]], [CORES[0]]]
    assert divide_cores(CORES, 3) == [[CORES[0]], [CORES[1]], [CORES[2], CORES[3]]]
    assert divide_cores([], 2) == [[], []]


def test_a_quota_is_divided_unless_the_user_sets_the_threads(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(placement, "find_quota", lambda: Quota(2.0, Path("cpu.max")))
    assert [each.environment["OMP_NUM_THREADS"] for each in place_replicas(config(replicas=2))] == ["1", "1"]
    machine.setenv("OMP_NUM_THREADS", "2")
    assert all("OMP_NUM_THREADS" not in each.environment for each in place_replicas(config(replicas=2)))


def test_the_default_kv_memory_is_divided_and_a_given_one_is_not(machine: pytest.MonkeyPatch) -> None:
    placed = place_replicas(config(replicas=2))
    assert [each.environment[SHARERS_VARIABLE] for each in placed] == ["2", "2"]
    placed = place_replicas(config(replicas=2, kv_memory=1 << 30))
    assert all(SHARERS_VARIABLE not in each.environment for each in placed)
    with pytest.raises(ConfigError, match="--kv-memory 6GiB: 2 replicas take 12GiB, but only 10GiB are free"):
        place_replicas(config(replicas=2, kv_memory=6 << 30))


def test_each_replica_gets_a_gpu_of_those_that_are_visible(machine: pytest.MonkeyPatch) -> None:
    machine.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, GPU-b")
    placed = place_replicas(config(replicas=2, device="cuda"))
    assert placed == (Place({"CUDA_VISIBLE_DEVICES": "GPU-a"}), Place({"CUDA_VISIBLE_DEVICES": "GPU-b"}))


def test_replicas_share_gpus_only_with_kv_memory(machine: pytest.MonkeyPatch) -> None:
    machine.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(ConfigError, match="--replicas 2: there is 1 GPU"):
        place_replicas(config(replicas=2, device="cuda"))
    placed = place_replicas(config(replicas=2, device="cuda", kv_memory=1 << 30))
    assert placed == (Place({"CUDA_VISIBLE_DEVICES": "3"}),) * 2


def test_each_rank_of_each_replica_gets_a_gpu_of_its_own(machine: pytest.MonkeyPatch) -> None:
    machine.setenv("CUDA_VISIBLE_DEVICES", "3,1,GPU-a,0,2")
    first, second = place_replicas(config(replicas=2, tp=2, device="cuda"))
    assert first.environment == {"CUDA_VISIBLE_DEVICES": "3,1"}
    assert first.ranks == (
        {RANK_VARIABLE: "0", "CUDA_VISIBLE_DEVICES": "3"},
        {RANK_VARIABLE: "1", "CUDA_VISIBLE_DEVICES": "1"},
    )
    assert [rank["CUDA_VISIBLE_DEVICES"] for rank in second.ranks] == ["GPU-a", "0"]


def test_ranks_share_no_gpu(machine: pytest.MonkeyPatch) -> None:
    machine.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    message = (
        r"--tp 4: the ranks need 4 GPUs, one each, but there are 3 GPUs. Lower --tp, or name more GPUs in "
    )
    with pytest.raises(ConfigError, match=message + "CUDA_VISIBLE_DEVICES"):
        place_replicas(config(tp=4, device="cuda"))
    message = "--tp 2: the ranks of 2 replicas need 4 GPUs, .* Lower --tp or --replicas"
    with pytest.raises(ConfigError, match=message):
        place_replicas(config(tp=2, replicas=2, device="cuda", kv_memory=1 << 30))


def test_host_caches_beside_gpus_are_counted_together(machine: pytest.MonkeyPatch) -> None:
    machine.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert len(place_replicas(config(replicas=2, tp=2, device="cuda", host_cache=2 << 30))) == 2
    message = (
        "--host-cache 4GiB: 4 processes take 16GiB, but only 10GiB are free. Lower it, or --replicas or --tp"
    )
    with pytest.raises(ConfigError, match=message):
        place_replicas(config(replicas=2, tp=2, device="cuda", host_cache=4 << 30))


def test_gpus_are_counted_without_a_library(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia2", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert find_gpus({}, tmp_path) == ["0", "1", "2"]
    assert find_gpus({"CUDA_VISIBLE_DEVICES": "1,0"}, tmp_path) == ["1", "0"]


def estimate(tmp_path: Path, **fields: Any) -> int:
    """The memory of a model with weights of 100,000 bytes, without what each model takes at least."""
    (tmp_path / "model.safetensors").write_bytes(bytes(100_000))
    given = ServeConfig(model=tmp_path, served_model_name="m", **fields)
    (hosted,) = host_models(given, tmp_path, place_replicas(given))
    return hosted.memory


def test_the_memory_of_a_model_is_that_of_its_replicas_on_one_device(
    machine: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = int(WEIGHTS_FACTOR * 100_000) + MIN_KV_BYTES + PROCESS_BYTES
    assert estimate(tmp_path) == one
    assert estimate(tmp_path, replicas=3) == 3 * one
    machine.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert estimate(tmp_path, device="cuda", replicas=2) == one
    of_rank = int(WEIGHTS_FACTOR * 50_000) + MIN_KV_BYTES + PROCESS_BYTES
    assert estimate(tmp_path, device="cuda", tp=2) == of_rank
    with_kv = one - MIN_KV_BYTES + (1 << 30)
    assert estimate(tmp_path, device="cuda", replicas=3, kv_memory=1 << 30) == 2 * with_kv


def test_weights_that_are_quantized_when_they_are_loaded_take_less(tmp_path: Path) -> None:
    assert estimate(tmp_path, quantize="int4") < estimate(tmp_path, quantize="int8") < estimate(tmp_path)
