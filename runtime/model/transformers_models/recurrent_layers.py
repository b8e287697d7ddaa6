"""Recurrent layers of transformers' models, such as Mamba and gated delta nets, over the rows of a step.

The code of such a layer takes tokens of one sequence, or one token of each of several sequences, and keeps
its state in a cache object. So a layer is called once for all rows in decode, and once for each chunk.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Cache, DynamicCache, PreTrainedConfig
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from ..interface.cache_spec import StateTensor
from ..interface.input_batch import InputBatch

_STATE_METHODS = ("get_conv_state", "update_conv_state", "get_recurrent_state", "update_recurrent_state")
"""the methods of transformers' caches by which layers read and write states"""
_FORWARDS = ("forward", "torch_forward", "slow_forward", "cuda_kernels_forward")
CACHE_NAMES = ("cache_params", "past_key_values", "cache")
"""names of the cache among the arguments of models"""


class StateRef(NamedTuple):
    """Where transformers' cache keeps a tensor of a state."""

    layer: int
    kind: Literal["conv_states", "recurrent_states"]
    number: int
    """a layer may have several of a kind"""


class StateCall(NamedTuple):
    """A call of a recurrent layer in a forward pass: what it keeps."""

    refs: tuple[StateRef, ...]
    tensors: tuple[StateTensor, ...]
    by_token: bool
    """whether chunks after the first one are computed token by token. The code of some layers ignores the
    state if it gets several tokens."""


class Tokens(NamedTuple):
    """Some of a step's tokens: those from `start` to `end`, or one token of each of several rows."""

    start: int
    end: int
    single: torch.Tensor | None = None

    def choose(self, x: torch.Tensor) -> torch.Tensor:
        """x [1, tokens, …] → [1, end - start, …], or [rows, 1, …]"""
        if self.single is not None:
            return x[0, self.single].unsqueeze(1)
        return x[:, self.start : self.end]

    def write(self, part: torch.Tensor, out: torch.Tensor) -> None:
        if self.single is not None:
            out[0, self.single] = part.squeeze(1)
        else:
            out[:, self.start : self.end] = part


class StepCache(Cache):  # type: ignore[misc]
    """The cache that the model gets: it stores nothing, because attention and recurrent layers do."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0


Compute = Callable[[Tokens, DynamicCache], Any]
"""calls the layer with some tokens of its input and a cache"""


class StateHandler(Protocol):
    """A forward pass that computes or records recurrent layers."""

    def run(self, compute: Compute, size: int) -> Any:
        """size: tokens of the forward pass"""
        ...


class RecurrentLayers:
    """The recurrent layers of a model. While a forward pass runs, its handler computes them."""

    def __init__(self, base: torch.nn.Module) -> None:
        self._handlers: list[StateHandler] = []
        self._found = find_recurrent(base)
        parameters = inspect.signature(inspect.unwrap(type(base).forward)).parameters
        self._cache_name = next((name for name in CACHE_NAMES if name in parameters), CACHE_NAMES[0])
        for module in self._found:
            self._wrap(module)

    def __bool__(self) -> bool:
        return bool(self._found)

    def modules(self) -> set[torch.nn.Module]:
        """The layers and all modules in them."""
        return {module for layer in self._found for module in layer.modules()}

    @contextmanager
    def handled_by(self, handler: StateHandler) -> Iterator[dict[str, Any]]:
        """Context in which `handler` computes them. Yields the arguments that the model needs."""
        self._handlers.append(handler)
        try:
            yield {self._cache_name: StepCache(), "use_cache": True} if self._found else {"use_cache": False}
        finally:
            self._handlers.pop()

    def _wrap(self, module: torch.nn.Module) -> None:
        original = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            inputs = (*args, *kwargs.values())
            size = next(each.shape[1] for each in inputs if isinstance(each, torch.Tensor) and each.dim() > 2)

            def compute(tokens: Tokens, cache: DynamicCache) -> Any:
                return original(*_choose(args, tokens, size, cache), **_choose(kwargs, tokens, size, cache))

            return self._handlers[-1].run(compute, size)

        module.forward = forward


def find_recurrent(base: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules that keep a state in transformers' cache."""
    kinds = {kind for kind in {type(module) for module in base.modules()} if keeps_state(kind)}
    found = {name: module for name, module in base.named_modules() if type(module) in kinds}
    inner = {name for name in found for outer in found if name.startswith(f"{outer}.")}
    return [module for name, module in found.items() if name not in inner]


def keeps_state(of_module: type[torch.nn.Module]) -> bool:
    """Whether the module keeps a state in transformers' cache."""
    if not of_module.__module__.startswith("transformers."):
        return False
    functions = [inspect.unwrap(getattr(of_module, name)) for name in _FORWARDS if hasattr(of_module, name)]
    return any(
        name in _STATE_METHODS or name in _find_state_functions(function.__module__)
        for function in functions
        for name in function.__code__.co_names
    )


@functools.cache
def _find_state_functions(module: str) -> set[str]:
    """The functions of the module that read or write states. The library wraps them in objects without a
    source, so the module's source is read."""
    statements = ast.parse(inspect.getsource(sys.modules[module])).body
    functions = [each for each in statements if isinstance(each, ast.FunctionDef)]
    return {
        each.name
        for each in functions
        if any(isinstance(part, ast.Attribute) and part.attr in _STATE_METHODS for part in ast.walk(each))
    }


class _ReadTensors(TorchDispatchMode):
    """Records the tensors that operations read."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found: list[Any] = []

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return any(each is tensor for each in self._found)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        read = args[1:] if func is torch.ops.aten.copy_.default else args
        self._found += tree_leaves((read, kwargs))
        return func(*args, **kwargs)


class StateRecorder:
    """Records what each call of a recurrent layer keeps, on the meta device. A second call shows whether the
    layer's code reads what the first one kept."""

    def __init__(self, config: PreTrainedConfig) -> None:
        self.calls: list[StateCall] = []
        self._cache = DynamicCache(config=config)

    def run(self, compute: Compute, size: int) -> Any:
        before = set(self._states())
        result = compute(Tokens(0, size), self._cache)
        kept = {ref: state for ref, state in self._states().items() if ref not in before}
        tensors = (StateTensor(tuple(state.shape[1:]), _own_dtype(state)) for state in kept.values())
        with _ReadTensors() as read:
            compute(Tokens(0, size), self._cache)
        by_token = any(state not in read for state in kept.values())
        self.calls.append(StateCall(tuple(kept), tuple(tensors), by_token))
        return result

    def _states(self) -> dict[StateRef, torch.Tensor]:
        found = {}
        for number, layer in enumerate(self._cache.layers):
            if isinstance(layer, LinearAttentionCacheLayerMixin):
                for kind in ("conv_states", "recurrent_states"):
                    for index, state in getattr(layer, kind).items():
                        if state is not None:
                            found[StateRef(number, kind, index)] = state
        return found


def _own_dtype(state: torch.Tensor) -> torch.dtype | None:
    """The state's dtype; None if it is that of activations, which are bfloat16 on the meta device."""
    return None if state.dtype == torch.bfloat16 else state.dtype


class StepStates:
    """The recurrent layers of one forward pass. Each row's state is in its place of `batch.states`."""

    def __init__(self, calls: Sequence[StateCall], cache: DynamicCache, batch: InputBatch) -> None:
        assert batch.states is not None, "a model with recurrent layers needs the rows' states"
        self._calls, self._cache = iter(calls), cache
        self._tensors = iter(batch.states.tensors)
        self._runs = {
            by_token: list(self._divide(batch, batch.states.places, by_token))
            for by_token in {call.by_token for call in calls}
        }

    def _divide(
        self, batch: InputBatch, places: np.ndarray[Any, np.dtype[np.int64]], by_token: bool
    ) -> Iterator[tuple[Tokens, torch.Tensor | int, bool]]:
        """The calls for the rows: their tokens, the places of their states, and whether they have one yet."""
        attention = batch.groups[0].attention
        lengths, kv_lengths = attention.query_lengths, attention.kv_lengths
        ends = np.cumsum(lengths)
        decoding = (lengths == 1) & (kv_lengths > 1)
        if decoding.sum() > 1:
            device = batch.tokens.device
            single = torch.from_numpy(ends[decoding].astype(np.int64) - 1).to(device)
            yield Tokens(0, 0, single), torch.from_numpy(places[decoding]).to(device), True
        rows = zip(ends.tolist(), lengths.tolist(), kv_lengths.tolist(), places.tolist(), strict=True)
        for row, (end, length, kv_length, place) in enumerate(rows):
            if decoding[row] and decoding.sum() > 1:
                continue
            continues = kv_length > length
            if continues and by_token:
                for token in range(end - length, end):
                    yield Tokens(token, token + 1), place, True
            else:
                yield Tokens(end - length, end), place, continues

    def run(self, compute: Compute, size: int) -> Any:
        call = next(self._calls)
        states = [(self._cache.layers[ref.layer], ref, next(self._tensors)) for ref in call.refs]
        results = []
        for tokens, place, continues in self._runs[call.by_token]:
            for layer, ref, tensor in states:
                state = tensor[place] if isinstance(place, torch.Tensor) else tensor[place].unsqueeze(0)
                if not continues:  # some layers read the state after the convolution has marked it as valid
                    state.zero_()
                getattr(layer, ref.kind)[ref.number] = state
                getattr(layer, f"is_{ref.kind}_initialized")[ref.number] = True
                layer.has_previous_state[ref.number] = continues
                if ref.kind == "conv_states":
                    layer.conv_kernel_size[ref.number] = state.shape[-1]
            results.append((tokens, compute(tokens, self._cache)))
            for layer, ref, tensor in states:
                _store(tensor, place, getattr(layer, ref.kind)[ref.number])
        return _join(results, size)


def _store(tensor: torch.Tensor, place: torch.Tensor | int, state: torch.Tensor) -> None:
    """Writes a state after a call to its place, unless the layer's code has written there already."""
    if isinstance(place, torch.Tensor):
        tensor[place] = state
    elif state.data_ptr() != tensor[place].data_ptr():
        tensor[place] = state[0]


def _choose(value: Any, tokens: Tokens, size: int, cache: DynamicCache) -> Any:
    """The part of a layer's argument that belongs to `tokens`, with the cache of their rows."""
    if isinstance(value, StepCache):
        return cache
    if isinstance(value, torch.Tensor):
        is_by_token = value.dim() >= 2 and value.shape[0] == 1 and value.shape[1] == size
        return tokens.choose(value) if is_by_token else value
    if isinstance(value, (tuple, list)):
        return tuple(_choose(each, tokens, size, cache) for each in value)
    if isinstance(value, dict):
        return {name: _choose(each, tokens, size, cache) for name, each in value.items()}
    return value


def _join(results: list[tuple[Tokens, Any]], size: int) -> Any:
    """Puts the results of a layer's calls together in the order of the step's tokens."""
    first = results[0][1]
    if len(results) == 1 and results[0][0].single is None:
        return first
    if isinstance(first, tuple):
        return tuple(
            _join([(tokens, part[at]) for tokens, part in results], size) for at in range(len(first))
        )
    if not isinstance(first, torch.Tensor):
        return first
    out = first.new_empty(1, size, *first.shape[2:])
    for tokens, part in results:
        tokens.write(part, out)
    return out
