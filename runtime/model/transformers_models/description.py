"""What a model of transformers needs, from its config.json alone: a forward pass without weights shows it."""

from __future__ import annotations

import copy
import inspect
import logging
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.gemma3n import Gemma3nVisionConfig

from ...checkpoint_json import CONFIG_FILE
from ...errors import ConfigError
from ...families import GENERATES, find_stem
from ..interface.cache_spec import CacheSpec
from . import experts
from .attention_calls import (
    BIAS_BY_DISTANCE,
    NAME,
    AttentionCall,
    UnservedModelError,
    handled_by,
    use_attention,
)
from .llama4 import replace_llama4
from .own_attention import replace_own_attention
from .recurrent_layers import StateCall, StateRecorder, keeps_state
from .split_model import SplitModel

PROBE_TOKENS = 3
MAX_PROBLEM = 160
"""characters of an error of transformers in our messages"""
_KERNELS = "transformers.integrations.hub_kernels"
"""the logger that asks for packages of kernels, such as causal_conv1d, which we do not use"""
_CHANGING_ROPES = ("dynamic", "longrope")
"""kinds of stretched positions whose values change when a context exceeds the original one"""
_TYPE_OF_TENSOR = (torch.Tensor.dtype.__get__, torch.Tensor.device.__get__)  # type: ignore[attr-defined]
_ERRORS = (
    RuntimeError,
    TypeError,
    ValueError,
    AttributeError,
    ImportError,
    AssertionError,
    ArithmeticError,
    LookupError,
    StrictDataclassError,
)
"""what transformers raises for a config that it can't use"""
_OWN_STATES = ("conv_state", "recurrent_state", "ssm_state", "rnn_state", "linear_cache")
"""words in the code of layers that keep a state outside of transformers' cache"""
RECURRENT_POSITIONS = 1 << 17
"""the longest context of a model whose layers are all recurrent, for which no position is too large"""
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")


@dataclass(frozen=True)
class TransformersConfig:
    """A `ModelConfig` of a model that transformers computes."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    max_positions: int
    default_positions: int
    dtype: str | None
    calls: tuple[AttentionCall, ...]
    """the attention calls of a forward pass, in their order"""
    state_calls: tuple[StateCall, ...]
    """the calls of recurrent layers"""
    weight_readers: tuple[str, ...]
    """the names of linear modules, and of the embedding, whose weights the model's code reads itself"""
    unused: tuple[str, ...]
    """the names of parts that text does not need, such as an encoder of images"""
    source: str = field(repr=False)
    """the library's version, the model's class and its config: what its results depend on beside weights"""

    @property
    def cache_spec(self) -> CacheSpec:
        shapes = tuple((call.kv_heads, max(call.key_dim, call.value_dim)) for call in self.calls)
        return CacheSpec(
            max((call.heads for call in self.calls), default=1),
            max((kv_heads for kv_heads, _ in shapes), default=1),
            max((head_dim for _, head_dim in shapes), default=1),
            tuple(call.window for call in self.calls),
            tuple(call.chunk for call in self.calls),
            shapes if len(set(shapes)) > 1 else (),
            tuple(tensor for call in self.state_calls for tensor in call.tensors),
        )


def describe(model: Path, pools: bool = False) -> tuple[TransformersConfig, PreTrainedConfig]:
    """Describes `model`. Raises ConfigError with the reason if it can't be served. pools: the head is not
    used, so it needs no weight"""
    config = read_config(model)
    if pools:
        config.get_text_config(decoder=True).tie_word_embeddings = config.tie_word_embeddings = True
    with refusing(model, config):
        return _describe(config, pools), config


@contextmanager
def refusing(model: Path, config: PreTrainedConfig) -> Iterator[None]:
    """Context that turns transformers' errors into a ConfigError with the reason."""
    try:
        yield
        return
    except UnservedModelError as error:
        reason = str(error)
    except KeyError as error:
        reason = f"can't be computed: its config lacks {error}"
    except _ERRORS as error:
        problem = textwrap.shorten(str(error), MAX_PROBLEM)
        reason = f"can't be computed: {type(error).__name__}: {problem}"
    named = f"{config.model_type} (transformers {transformers.__version__})"
    raise ConfigError(
        f"{model / CONFIG_FILE}: {named} {reason}, so it is not served. docs/models.md lists what is."
    )


def read_config(model: Path) -> PreTrainedConfig:
    try:
        return AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False)
    except (*_ERRORS, OSError) as error:
        first = textwrap.shorten(str(error), MAX_PROBLEM)
        raise ConfigError(f"{model / CONFIG_FILE}: transformers can't read it: {first}") from None


def build(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """The model with our functions for attention and experts, on the current device."""
    logging.getLogger(_KERNELS).setLevel(logging.ERROR)
    with quiet():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", experts_implementation=experts.NAME, dtype=dtype
        )
    use_attention(model, NAME)
    replace_own_attention(model)
    replace_llama4(model)
    return model.eval()


def _describe(config: PreTrainedConfig, pools: bool) -> TransformersConfig:
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise UnservedModelError("is no language model that continues text")
    _refuse_other_tasks(config, pools)
    text = config.get_text_config(decoder=True)
    if getattr(config, "is_encoder_decoder", False):
        raise UnservedModelError("has an encoder, which is not served")
    if getattr(text, "alibi", False):  # a Falcon adds this bias to the mask, which the handler leaves out
        raise UnservedModelError(BIAS_BY_DISTANCE)
    dtype = text.dtype or config.dtype
    with torch.device("meta"):
        model = build(copy.deepcopy(config), torch.bfloat16)
    _refuse_layers(model)
    inner = _inner_models(model)
    readers, used = _watch_weights(model)
    split = SplitModel(model)
    if not split.recurrent:
        _refuse_no_positions(split.base)
    recorder = _Recorder()
    ids = torch.zeros(PROBE_TOKENS, dtype=torch.int32, device="meta")
    no_values = _NoValues()  # type: ignore[no-untyped-call]
    states = StateRecorder(text)
    with (
        handled_by(recorder),
        split.recurrent.handled_by(states) as cache,
        no_values,
        torch.no_grad(),
        quiet(),
    ):
        hidden = split.hidden(ids, torch.arange(PROBE_TOKENS, device="meta"), **cache)
        logits = split.logits(hidden)
    if not recorder.calls and not states.calls:
        raise UnservedModelError("has attention outside of transformers' attention interface")
    if recorder.calls:
        _refuse_no_positions(split.base)
    positions = find_positions(text, has_attention=bool(recorder.calls))
    return TransformersConfig(
        vocab_size=logits.shape[1],
        hidden_size=hidden.shape[1],
        intermediate_size=_find_intermediate_size(text),
        max_positions=positions,
        default_positions=positions,
        dtype=str(dtype).removeprefix("torch.") if dtype else None,
        calls=tuple(recorder.calls),
        state_calls=tuple(states.calls),
        weight_readers=tuple(sorted(readers)),
        unused=_find_unused(inner, used),
        source=f"transformers {transformers.__version__} {type(model).__name__} {config.to_json_string()}",
    )


def find_readers(model: PreTrainedModel, run: Callable[[], object]) -> tuple[str, ...]:
    """The names of the linear modules whose weights other code reads while `run` runs the model, which is on
    the meta device. The model can't be used afterwards."""
    readers, _ = _watch_weights(model)
    no_values = _NoValues()  # type: ignore[no-untyped-call]
    with no_values, torch.no_grad(), quiet():
        run()
    return tuple(sorted(readers))


def _watch_weights(model: PreTrainedModel) -> tuple[set[str], set[str]]:
    """Puts probes in place of linear modules. They fill two sets of names: of the modules whose weights other
    code reads, and of those that run."""
    readers: set[str] = set()
    used: set[str] = set()
    _watch_embedding(model, readers)
    for name in find_linears(model):
        model.set_submodule(name, _Probe(model.get_submodule(name), name, readers, used))
    return readers, used


def _refuse_other_tasks(config: PreTrainedConfig, pools: bool) -> None:
    """Refuses checkpoints without a head for text, such as classifiers, unless the model pools."""
    own = AutoModelForCausalLM._model_mapping[type(config)].__name__
    stated = config.architectures or [own]
    if pools and find_stem(own) == find_stem(stated[0]):
        return
    if own not in stated and not any(name.endswith(GENERATES) for name in stated):
        raise UnservedModelError(f"has the architecture {stated[0]}, which does not continue text")


def _refuse_layers(model: PreTrainedModel) -> None:
    for of_module in dict.fromkeys(type(module) for module in model.modules()):
        of_library = of_module.__module__.startswith("transformers.")
        code = inspect.getsource(inspect.unwrap(of_module.forward)) if of_library else ""
        kind = of_module.__name__
        if any(state in code for state in _OWN_STATES) and not keeps_state(of_module):
            raise UnservedModelError(f"has layers with a state beside keys and values ({kind})")
        if "Indexer" in kind:
            raise UnservedModelError(f"chooses the keys of each token by an index ({kind})")
        if "Patcher" in kind:
            raise UnservedModelError(f"joins tokens to patches, whose sizes another model chooses ({kind})")


def _inner_models(model: PreTrainedModel) -> dict[str, list[str]]:
    """The names of the linear modules of each model inside `model`, by its name."""
    linears = find_linears(model)
    inner = [name for name, each in model.named_modules() if name and isinstance(each, PreTrainedModel)]
    return {name: [each for each in linears if each.startswith(f"{name}.")] for name in inner}


def _find_unused(inner: Mapping[str, list[str]], used: set[str]) -> tuple[str, ...]:
    """The names of the models whose linear modules have not run."""
    return tuple(name for name, linears in inner.items() if linears and used.isdisjoint(linears))


def _find_intermediate_size(config: PreTrainedConfig) -> int:
    size = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    return max(size) if isinstance(size, (list, tuple)) else int(size)


def _refuse_no_positions(base: torch.nn.Module) -> None:
    parts = [type(each) for each in base.modules() if each is base or isinstance(each, PreTrainedModel)]
    if not any(
        "position_ids" in inspect.signature(inspect.unwrap(part.forward)).parameters for part in parts
    ):
        raise UnservedModelError("takes no positions of its tokens")


def find_positions(config: PreTrainedConfig, has_attention: bool = True) -> int:
    """The longest context in tokens.

    Some stretched positions have other values in a longer context, and transformers takes the longest row of
    the step for it. Then a row's keys would depend on other rows, so the context ends before the change.
    """
    stated = (getattr(config, name, None) for name in _POSITIONS)
    longest = next((value for value in stated if isinstance(value, int) and value > 0), None)
    if longest is None and not has_attention:
        return RECURRENT_POSITIONS
    if longest is None:
        raise UnservedModelError(f"has none of {', '.join(_POSITIONS)}, so its longest context is unknown")
    ropes = getattr(config, "rope_parameters", None) or {}
    for rope in (ropes, *ropes.values()):
        if isinstance(rope, dict) and rope.get("rope_type") in _CHANGING_ROPES:
            longest = min(longest, rope.get("original_max_position_embeddings") or longest)
    return longest


def find_linears(model: torch.nn.Module) -> list[str]:
    """The names of the modules that only multiply by a matrix."""
    return [name for name, module in model.named_modules() if type(module) is torch.nn.Linear]


class _NoImages(PreTrainedModel):  # type: ignore[misc]
    """Stands in place of the encoder of images of gemma3n, whose code needs libraries that text does not."""

    config_class = Gemma3nVisionConfig


AutoModel.register(Gemma3nVisionConfig, _NoImages, exist_ok=True)


class _NoValues(TorchDispatchMode):
    """Lets code on the meta device that looks at values find none: no token has an expert, say."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        on_meta = bool(args) and isinstance(args[0], torch.Tensor) and args[0].is_meta
        if on_meta and func is torch.ops.aten.nonzero.default:
            return args[0].new_empty((0, args[0].dim()), dtype=torch.int64)
        if on_meta and func is torch.ops.aten._local_scalar_dense.default:
            return 0
        if (
            on_meta
            and func is torch.ops.aten._to_copy.default
            and kwargs.get("device") == torch.device("cpu")
        ):
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if on_meta and func is torch.ops.aten.split_with_sizes.default and not sum(args[1]):
            dim = args[2] if len(args) > 2 else kwargs.get("dim", 0)
            sizes = [args[0].shape[dim], *args[1][1:]]  # they were counts of tokens, read as zeros
            args = (args[0], sizes, dim)
        return func(*args, **kwargs)


class _Probe(torch.nn.Module):
    """Stands in place of a linear module. Adds its name to `used` when it runs, and to `readers` if other
    code reads its weight."""

    def __init__(self, linear: torch.nn.Module, name: str, readers: set[str], used: set[str]) -> None:
        super().__init__()
        assert isinstance(linear, torch.nn.Linear)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._linear = (linear,)  # in a tuple, so that PyTorch does not register it
        self._name, self._readers, self._used = name, readers, used

    @property
    def weight(self) -> torch.Tensor:
        self._readers.add(self._name)
        return self._linear[0].weight

    @property
    def bias(self) -> torch.Tensor | None:
        self._readers.add(self._name)
        return self._linear[0].bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._used.add(self._name)
        return x.new_empty(*x.shape[:-1], self.out_features)


def _watch_embedding(model: PreTrainedModel, readers: set[str]) -> None:
    """Adds the embedding's name to `readers` if other code than its own reads values of its weight."""
    module = model.get_input_embeddings()
    if not isinstance(module, torch.nn.Embedding):
        return
    name = next(name for name, each in model.named_modules() if each is module)
    stored = module.weight.data

    class WatchedWeight(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func not in _TYPE_OF_TENSOR:
                readers.add(name)
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]

    class WatchedEmbedding(torch.nn.Embedding):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return stored.new_empty(*input.shape, stored.shape[1])

    bases = (WatchedEmbedding,) if type(module) is torch.nn.Embedding else (type(module), WatchedEmbedding)
    weight = property(lambda _: stored.as_subclass(WatchedWeight))
    module.__class__ = type("WatchedEmbedding", bases, {"weight": weight})


class _Recorder:
    """Records attention calls on the meta device."""

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []

    def attend(
        self,
        call: AttentionCall,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        self.calls.append(call)
        return q.new_empty(1, q.shape[2], call.heads, call.value_dim)


@contextmanager
def quiet() -> Iterator[None]:
    """Context without transformers' warnings, which concern training and its own attention."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.set_verbosity(before)
