"""Ranks in a process group, as those on GPUs are, exchange tensors and values: by gloo on a CPU, and where a
test has two GPUs by NCCL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import graph_rank
import logged_steps
import pytest
import torch
from arbora.frontend.launch.placement import DEVICES_VARIABLE, find_gpus
from arbora.runtime.errors import ConfigError
from arbora.runtime.model.ranks import ONE_RANK, Rank, RanksOnHost, find_rank, open_ranks
from arbora.runtime.processes.child import RANK_FILE_VARIABLE, RANK_VARIABLE
from checkpoints import WINDOWED, random_model, save_model
from rank_worker import RankPlace, make_part, to_bytes
from ranked_model import exchange_in_process_group

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
GPUS = find_gpus(os.environ) if torch.cuda.is_available() else ["", ""]
"""as CUDA_VISIBLE_DEVICES names them; without any, what hides them from two ranks"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("widths", [(300, 300), (7, 64, 1)], ids=str)
def test_all_ranks_have_the_same_bits_of_sums_columns_and_values(
    widths: tuple[int, ...], dtype: torch.dtype
) -> None:
    found = exchange_in_process_group(widths, dtype)
    assert all(each == found[0] for each in found)
    parts = [make_part(rank, widths[0], dtype).float() for rank in range(len(widths))]
    total = torch.frombuffer(bytearray(found[0].total), dtype=dtype).view(3, -1)
    tolerance = 1e-6 if dtype == torch.float32 else 0.05
    assert torch.allclose(total.float(), torch.stack(parts).sum(0), atol=tolerance)
    columns = [make_part(rank, width, dtype) for rank, width in enumerate(widths)]
    assert found[0].joined == to_bytes(torch.cat(columns, dim=1))
    assert found[0].gathered == [[rank / 3, 2**53 - 1.0] for rank in range(len(widths))]


def test_the_supervisors_variables_say_how_a_rank_finds_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_rank(1) == Rank() and open_ranks(Rank(), CPU) is ONE_RANK
    monkeypatch.setenv(RANK_VARIABLE, "1")
    assert find_rank(2) == Rank(1, 2)
    with tempfile.TemporaryFile() as file:
        monkeypatch.setenv(RANK_FILE_VARIABLE, str(file.fileno()))
        assert isinstance(open_ranks(Rank(1, 2), CPU), RanksOnHost)


def test_gpus_need_a_pytorch_with_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RANK_FILE_VARIABLE, "0")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    with pytest.raises(ConfigError, match=r"--tp 2: PyTorch .* has no NCCL"):
        open_ranks(Rank(1, 2), CUDA)


def test_ranks_that_cant_be_connected_end_with_what_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    message = r"--tp 2: the ranks can't be connected \(.*nowhere0.*\)\. Check .* GLOO_SOCKET_IFNAME"
    with tempfile.NamedTemporaryFile() as file, pytest.raises(ConfigError, match=message):
        RankPlace(Rank(0, 2), file.name, in_process_group=True).connect()


@pytest.mark.skipif(len(GPUS) == 1, reason="two ranks need two GPUs")
@pytest.mark.parametrize(
    ("family", "shape"),
    [("llama", {"tie_word_embeddings": False}), ("qwen3", {**WINDOWED, "num_key_value_heads": 1})],
)
def test_graphs_of_all_ranks_sample_the_tokens_of_one(
    family: str, shape: dict[str, Any], tmp_path: Path
) -> None:
    """Each rank captures its graphs, which contain the exchanges, and replays them."""
    path = os.pathsep.join(filter(None, sys.path))
    save_model(random_model(family, **{"num_hidden_layers": 2, **shape}), tmp_path)
    with tempfile.TemporaryFile() as file:
        ranks = [
            subprocess.Popen(
                [sys.executable, graph_rank.__file__, str(file.fileno()), str(number), "2", str(tmp_path)],
                env={**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": path, DEVICES_VARIABLE: gpu},
                pass_fds=[file.fileno()],
                stdout=subprocess.PIPE,
            )
            for number, gpu in enumerate(GPUS[:2])
        ]
        found = [json.loads(rank.communicate()[0]) for rank in ranks]
    expected = graph_rank.generate(logged_steps.started(tmp_path, "cpu"))
    assert found == [[expected, 13]] * 2
