"""No ordinary request waits for Triton's compiler: the warm-up has compiled what its steps launch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import interpreted_triton  # noqa: F401
import pytest
import torch
from arbora.kernels.sampling.batch import LISTED
from arbora.runtime.messages import RowGroup, StepMasks
from arbora.runtime.model import kv_pool
from arbora.runtime.model.kv_pool import PoolSize
from arbora.runtime.model.loading import load_model
from arbora.runtime.model.warm_up import ZeroDrafter, warm_up_cuda
from arbora.runtime.sampling_params import SamplingParams
from byte_grammars import bits, byte_vocabulary, nested
from checkpoints import random_model, save_model
from stack_automata import load_message
from step_driver import StepDriver, packed, serve_config
from triton.runtime.interpreter import InterpretedFunction
from triton_device import DEVICE, cache_as_on_a_gpu, triton_kernels  # noqa: F401

pytestmark = pytest.mark.skipif(DEVICE.type == "cuda", reason="the interpreter notes what is launched")
SLOTS, PAGE, CONTEXT, WINDOW = 40, 16, 1024, 48
CHUNKS = (1, 2, 3, 15, 16, 17, 32, 64, 100, 128, 256, 400, 512)
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 0.7, "top_k": 7, "min_p": 0.1},
)
EDITS: tuple[dict[str, Any], ...] = (
    {},
    {"logit_bias": {3: 4.0, 5: 1.0}},
    {"frequency_penalty": 0.5},
    {"min_tokens": 9},
)


ALIGNMENT = 16


class CompileKey(NamedTuple):
    kernel: str
    arguments: tuple[tuple[str, object], ...]
    """of each argument what Triton specialises on: the type and alignment of a tensor, and of a number
    whether it is 1 or a multiple of 16; constants and options by their values"""


def _specialised(value: Any, is_constant: bool, is_free: bool) -> object:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.data_ptr() % ALIGNMENT == 0
    if is_constant or isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        wide = abs(value) >= 1 << 31
        return ("int", wide) if is_free else ("int", wide, value == 1, value % ALIGNMENT == 0)
    return type(value).__name__


def _key(kernel: InterpretedFunction[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> CompileKey:
    names = kernel.arg_names
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    free = kernel.kwargs.get("do_not_specialize") or ()
    arguments = tuple(
        (name, _specialised(value, name.isupper() or name not in names, name in free))
        for name, value in sorted(given.items())
    )
    return CompileKey(f"{kernel.fn.__module__}.{kernel.fn.__name__}", arguments)


@contextmanager
def noted_keys() -> Iterator[set[CompileKey]]:
    """The keys of all launches of the block, whose results are zeros. Call it inside `triton_kernels()`."""
    keys: set[CompileKey] = set()
    new = {name: getattr(torch, name) for name in ("empty", "empty_like")}
    new_empty = torch.Tensor.new_empty

    def launch(
        kernel: InterpretedFunction[Any], *args: Any, grid: object, warmup: bool, **kwargs: Any
    ) -> None:
        keys.add(_key(kernel, args, kwargs))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpretedFunction, "run", launch)
        for name, make in new.items():
            patch.setattr(torch, name, lambda *args, make=make, **kwargs: make(*args, **kwargs).zero_())
        patch.setattr(torch.Tensor, "new_empty", lambda *args, **kwargs: new_empty(*args, **kwargs).zero_())
        yield keys


class Server:
    """A model whose launches are noted: those of the warm-up, and those of steps."""

    def __init__(self, model: Path, **more: Any) -> None:
        fields = {"page_size": PAGE, "max_model_len": CONTEXT, "max_running": SLOTS, "enforce_eager": True}
        fields |= more
        config = serve_config(model, device=DEVICE.type, **fields)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kv_pool, "WINDOWED_DIVISOR", 1)  # the driver frees no page
            loaded = load_model(config, byte_vocabulary)
        self.driver = StepDriver(loaded.runner, loaded.ready)
        pool = PoolSize(tuple(each.num_pages for each in loaded.ready.groups), loaded.ready.max_model_len)
        with triton_kernels(), noted_keys() as self.warm:
            assert warm_up_cuda(loaded.runner, loaded.runner._model, pool, config, DEVICE)
        self.driver.runner.load_grammar(load_message(1, nested()))

    def start(self, slot: int, grammar: int | None = None, **params: Any) -> None:
        sampling = SamplingParams(max_tokens=64, **params)
        self.driver.start(slot, sampling, grammar=grammar, banned_tokens=packed([3, 4]))

    def late(self, keys: set[CompileKey]) -> list[str]:
        """The keys that were not compiled before, as text that names what differs."""
        return sorted(f"{key.kernel}: {_difference(key, self.warm)}" for key in keys - self.warm)


def _difference(key: CompileKey, others: set[CompileKey]) -> object:
    """The arguments in which a key differs from the most similar one of the same kernel."""
    same = [other for other in others if other.kernel == key.kernel]
    differences = [sorted(set(key.arguments) - set(other.arguments), key=str) for other in same]
    return min(differences, key=len) if differences else "a new kernel"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = random_model(
        "mistral", num_hidden_layers=2, sliding_window=WINDOW, max_position_embeddings=CONTEXT
    )
    server = Server(save_model(model, tmp_path_factory.mktemp("model")))
    with triton_kernels():
        yield server


def test_chunks_of_any_length_behind_any_prefix(server: Server) -> None:
    driver = server.driver
    with noted_keys() as keys:
        for start, chunk in product((0, 5, PAGE, 2 * WINDOW), CHUNKS):
            server.start(0, temperature=0.0)
            if start:
                driver.run([driver.row(0, [1] * start, samples=0)])
            driver.run([driver.row(0, [1] * chunk)])
            driver.run([driver.row(0)])
    assert server.late(keys) == []


def test_rows_in_decode_alone_in_groups_and_beside_chunks(server: Server) -> None:
    driver = server.driver
    for slot in range(SLOTS):
        server.start(slot, temperature=0.0)
    with noted_keys() as keys:
        driver.run([driver.row(0, [1] * PAGE * 2)])
        for count in (1, 2, 15, 16):  # pages that one step copies
            for slot in range(1, 1 + count):
                server.start(slot, temperature=0.0)
                driver.share(slot, 0, 2 * PAGE - 3)
            driver.run([driver.row(slot, [1] * 3) for slot in range(1, 1 + count)])
        for slot in range(17, SLOTS):
            driver.share(slot, 0, PAGE)
        driver.run([driver.row(slot, [1]) for slot in range(17, SLOTS)])
        rows = range(SLOTS)
        for count in (1, 2, 3, 16, 17, 32, SLOTS):
            groups = [RowGroup(0, count, PAGE)] if count > 1 else []
            driver.run([driver.row(slot) for slot in rows[:count]])
            driver.run([driver.row(slot) for slot in rows[:count]], groups)
        driver.run(
            [*(driver.row(slot) for slot in rows[1:]), driver.row(0, [1] * 20)], [RowGroup(0, 9, PAGE)]
        )
    assert server.late(keys) == []


def test_every_way_to_sample(server: Server) -> None:
    driver = server.driver
    reports = (None, 0, LISTED[0], LISTED[-1])
    with noted_keys() as keys:
        for kind, edits, grammar, logprobs in product(KINDS, EDITS, (None, 1), reports):
            server.start(0, grammar, logprobs=logprobs, **kind, **edits)
            server.start(1)
            driver.run([driver.row(0, [1]), driver.row(1, [1])])
            driver.run([driver.row(0, host_mask=True)], masks=lambda: StepMasks(1, packed([0]), bits([97])))
        server.start(0, temperature=0.0, prompt_logprobs=1)
        driver.run([driver.row(0, [1, 2, 3], samples=0, targets=packed([2, 3]))])
    assert server.late(keys) == []


def test_rows_with_drafts(tmp_path: Path) -> None:
    server = Server(
        save_model(random_model("qwen3", num_hidden_layers=1, max_position_embeddings=CONTEXT), tmp_path),
        speculate=7,
    )
    driver = server.driver
    driver.runner._drafter = ZeroDrafter()
    with triton_kernels(), noted_keys() as keys:
        for kind, edits, grammar in product(KINDS, EDITS, (None, 1)):
            server.start(0, grammar, **kind, **edits)
            server.start(1)
            driver.run([driver.row(0, [1]), driver.row(1, [1])])
            driver.run([driver.row(0, samples=8)])
            driver.run([driver.row(0, samples=4), driver.row(1)])
            driver.run([driver.row(0), driver.row(1)])
    assert server.late(keys) == []


def test_more_alternatives_than_are_listed_are_compiled_when_they_are_asked_for(server: Server) -> None:
    driver = server.driver
    with noted_keys() as keys:
        server.start(0, temperature=0.0, logprobs=LISTED[-1] + 20)
        driver.run([driver.row(0, [1])])
    assert [name.partition(":")[0] for name in server.late(keys)] == [
        "arbora.kernels.sampling.race_cuda.finish_kernel"
    ]
