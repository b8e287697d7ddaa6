"""Forward passes as CUDA graphs: one launch instead of ten for each layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...kernels.attention.cuda import Shape
from ...kernels.attention.cuda_tiles import Tiles
from ...kernels.attention.fixed_steps import Frame, Scratch, frame_tiles, needed_tiles
from ...kernels.automaton.cuda import step_ahead, write_masks
from ...kernels.automaton.layout import TABLES
from ...kernels.common.drafts import NO_DRAFT, DraftRows
from ...kernels.common.feed_cuda import feed
from ...kernels.common.step_tokens import NO_SLOT
from .capture import Captures, Replay, choose_sizes, find_size
from .input_batch import StepInputs
from .interface.cache_spec import CacheSpec, number_groups
from .interface.input_batch import GroupInputs, InputBatch
from .interface.model import Model
from .page_tables import PageTables
from .slot_states import SlotStates

MAX_TOKENS = 512
"""maximal number of tokens in a graph with chunks; steps of rows in decode may have more"""
SKIPPED = -1
"""place of tokens whose keys and values are not written, and of new pages that no page table gets"""


class SideStream:
    """A second CUDA stream. What it launches while a graph is captured becomes a branch of that graph."""

    def __init__(self, device: torch.device) -> None:
        """device: on a CPU, which has no streams, launches follow each other"""
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def beside(self, launch: Callable[[], object]) -> Iterator[None]:
        """Runs `launch` after all earlier launches of the current stream and beside the context's launches.
        Later launches of the current stream wait for both."""
        if self._stream is None:
            launch()
            yield
            return
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            launch()
        yield
        current.wait_stream(self._stream)


class _Kind(NamedTuple):
    """The steps that a graph serves."""

    tokens: int
    tiles: tuple[Tiles, ...]
    has_adapters: bool


class _Captured(NamedTuple):
    frame: Frame
    replay: Replay


class ForwardGraphs:
    """The forward pass of steps with few tokens: one graph for each of several numbers of tokens.

    A branch of each graph writes the automata's masks of the rows that sample.

    A step runs in the smallest graph that holds it; padding tokens attend to nothing and write nothing. A
    graph serves any mixture of rows in decode and chunks: only the sizes of their tiles differ between
    graphs.
    """

    @torch.inference_mode()
    def __init__(
        self,
        spec: CacheSpec,
        hidden: torch.Tensor,
        tables: PageTables,
        states: SlotStates,
        has_adapters: bool = False,
    ) -> None:
        """Allocates the inputs of the graphs.

        hidden: [rows, hidden], where the graphs write their results; as many rows as a step can have
        states: the last token and the automaton of each slot
        has_adapters: whether rows may have adapters. Steps in which some have one run in graphs of their own
        """
        rows = len(hidden)
        heads = (spec.heads, spec.kv_heads, spec.head_dim)
        self._layer_groups = number_groups(tables.groups)
        self._group_of = dict(zip(spec.reaches, self._layer_groups or [0] * spec.layers, strict=True))
        """the page group of each reach"""
        self._shapes = [Shape(*heads, reach) for reach in self._group_of]
        self._num_groups = len(tables.groups)
        self._max_tokens = max(MAX_TOKENS, rows)
        self._scratch = Scratch.allocate(self._shapes[0], self._max_tokens, tables.on_device)
        self._hidden, self._states = hidden, states
        self._side = SideStream(hidden.device)
        self._sizes = choose_sizes(self._max_tokens)
        self._adapted = (False, True) if has_adapters else (False,)
        self._graphs: dict[_Kind, _Captured] = {}

    @torch.inference_mode()
    def capture(self, model: Model, kvs: Sequence[torch.Tensor], captures: Captures) -> None:
        """Call once. Captures the largest first, so that the others fit into its memory."""
        for kind in self._kinds():
            frame, work = self._forward(kind, model, kvs)
            replay = captures.capture(work, f"{kind.tokens} tokens")
            if replay is not None:
                self._graphs[kind] = _Captured(frame, replay)

    @torch.inference_mode()
    def bytes(self, model: Model, kvs: Sequence[torch.Tensor], captures: Captures) -> int:
        """Bytes that all graphs will take, if each takes as much of the driver's memory as the first one.

        kvs: few pages suffice
        """
        kind = next(self._kinds())
        _, work = self._forward(kind, model, kvs)
        memory = captures.measure(work, f"{kind.tokens} tokens")
        return memory.driver * sum(1 for _ in self._kinds()) + memory.tensors

    def forward(self, inputs: StepInputs) -> torch.Tensor | None:
        """Runs `Model.forward` as a graph; None if no graph fits. The next call overwrites the result."""
        outputs = len(inputs.outputs)
        if inputs.size > self._max_tokens or outputs > len(self._hidden):
            return None
        size = find_size(inputs.size, self._sizes)
        tiles = needed_tiles(inputs.attention[0], self._shapes[0], self._hidden.element_size())
        captured = self._graphs.get(_Kind(size, tiles, inputs.adapters is not None))
        many_pages = len(inputs.new_pages[0]) > size
        batches = [inputs.attention[group] for group in self._group_of.values()]
        if captured is None or not captured.frame.load(
            batches, self._arrays(inputs, size, with_pages=not many_pages)
        ):
            return None
        if many_pages:
            inputs.move_pages()
        captured.replay()
        return self._hidden[:outputs]

    def _kinds(self) -> Iterator[_Kind]:
        for size in reversed(self._sizes):
            for tiles in frame_tiles(self._shapes[0], size, self._hidden.element_size()):
                for has_adapters in self._adapted:
                    yield _Kind(size, tiles, has_adapters)

    def _forward(self, kind: _Kind, model: Model, kvs: Sequence[torch.Tensor]) -> tuple[Frame, Replay]:
        size = kind.tokens
        padding = self._states.registers.padding_slot
        defaults = _defaults(size, self._max_outputs(size), padding, self._num_groups)
        if not kind.has_adapters:
            del defaults["adapters"], defaults["output adapters"]
        if self._states.max_drafts:
            defaults |= _draft_defaults(self._max_outputs(size))
        frame = Frame(self._shapes, size, self._scratch, self._hidden.element_size(), kind.tiles, defaults)
        return frame, partial(self._run, frame, model, kvs)

    def _max_outputs(self, tokens: int) -> int:
        return min(tokens, len(self._hidden))

    def _run(self, frame: Frame, model: Model, kvs: Sequence[torch.Tensor]) -> None:
        at = frame.tensors
        pages = at["new places"], at["new pages"], self._scratch.tables
        with self._side.beside(partial(self._write_masks, at)):
            batch = InputBatch(
                tokens=feed(at["tokens"], at["slots"], self._states.sampling.last_tokens, *pages),
                positions=at["positions"],
                groups=tuple(GroupInputs(at[_name_places(n)], frame.batch) for n in range(self._num_groups)),
                layer_groups=self._layer_groups,
                outputs=at["outputs"],
                adapters=at.get("adapters"),
                output_adapters=at.get("output adapters"),
            )
            hidden = model.forward(batch, kvs)
            self._hidden[: len(hidden)].copy_(hidden)

    def _write_masks(self, at: Mapping[str, torch.Tensor]) -> None:
        slots, tables, registers = at["sampled slots"], at["automata"], self._states.registers
        if registers.ahead is None:
            write_masks(slots, registers.values, tables, registers.masks)
            return
        step_ahead(slots, at["draft offsets"], at["drafts"], registers, tables)
        write_masks(registers.row_numbers[: len(slots)], registers.ahead, tables, registers.masks)

    def _arrays(self, inputs: StepInputs, size: int, *, with_pages: bool) -> dict[str, NDArray[Any]]:
        """The inputs of a graph of `size` tokens."""
        places, pages = inputs.new_pages
        grouped = inputs.group_adapters(size, self._max_outputs(size))
        drafted: dict[str, NDArray[Any]] = {}
        if self._states.max_drafts:
            drafts = inputs.drafts or DraftRows.without_drafts(len(inputs.sampled_slots))
            drafted = {"draft offsets": drafts.offsets, "drafts": drafts.tokens}
        return {
            "tokens": inputs.tokens,
            "slots": inputs.slots,
            "positions": inputs.positions,
            **{_name_places(group): places for group, places in enumerate(inputs.places)},
            "outputs": inputs.outputs,
            "sampled slots": inputs.sampled_slots,
            "automata": self._states.table_addresses(),
            **drafted,
            **dict(zip(("adapters", "output adapters"), grouped, strict=False)),
            **({"new places": places, "new pages": pages} if with_pages else {}),
        }


def _draft_defaults(outputs: int) -> dict[str, NDArray[Any]]:
    return {"draft offsets": np.zeros(outputs, np.int32), "drafts": np.full(outputs, NO_DRAFT, np.int32)}


def _name_places(group: int) -> str:
    return f"places in group {group}"


def _defaults(tokens: int, outputs: int, padding_slot: int, groups: int) -> dict[str, NDArray[Any]]:
    """The inputs of padding tokens."""
    return {
        "tokens": np.zeros(tokens, np.int32),
        "slots": np.full(tokens, NO_SLOT, np.int32),
        "positions": np.zeros(tokens, np.int64),
        **{_name_places(group): np.full(tokens, SKIPPED, np.int64) for group in range(groups)},
        "outputs": np.zeros(outputs, np.int64),
        "sampled slots": np.full(outputs, padding_slot, np.int32),
        "automata": np.zeros(TABLES, np.int64),
        "new places": np.full(tokens, SKIPPED, np.int64),
        "new pages": np.zeros(tokens, np.int32),
        "adapters": np.zeros(1 + 4 * tokens, np.int32),
        "output adapters": np.zeros(1 + 4 * outputs, np.int32),
    }
