"""The adapters that a model process has loaded."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from ....kernels.adapters import FIELDS, RANK, ProductAdapters
from ...config import MAX_LORA_RANK, ServeConfig
from ...errors import ConfigError
from ...messages import Adapter
from ...option_values import show
from ..interface.model import Model
from .peft_checkpoint import LowRank, Shape, hash_adapter, read_adapter
from .peft_config import read_peft_config

DEFAULT_RANK = 16
log = logging.getLogger(__name__)


def rank_limit(config: ServeConfig) -> int:
    """The largest rank of adapters that memory is planned for. Raises ConfigError for an adapter that can't
    be read."""
    if config.max_lora_rank is not None:
        return config.max_lora_rank
    ranks = [DEFAULT_RANK]
    for name, path in config.loras:
        with _naming(name, path):
            ranks.append(read_peft_config(path).max_rank())
    return min(MAX_LORA_RANK, max(ranks))


@contextmanager
def _naming(name: str, path: Path) -> Iterator[None]:
    """Makes errors name the option with the adapter."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"--lora {name}={path}: {error}") from None


class AdapterBank:
    """Reads adapters into numbered places. Steps find them in one table, so programs and graphs stay
    valid."""

    def __init__(self, model: Model, places: int, max_rank: int, device: torch.device) -> None:
        products = model.adaptable_products()
        self.places = places
        self._model, self._products, self._max_rank = model, products, max_rank
        self._dtype, self._device = model.dtype, device
        self._table = torch.zeros(places, len(products), FIELDS, dtype=torch.int64, device=device)
        self._kept: dict[int, list[torch.Tensor]] = {}
        """the tensors of each place, whose addresses the table has"""
        self._modules = {
            name: Shape(outputs, product.in_features)
            for product, parts in products
            for name, outputs in parts
        }
        for number, (product, parts) in enumerate(products):
            sizes = [outputs for _, outputs in parts]
            product.adapters = ProductAdapters(self._table, number, sizes, max_rank)

    def bytes(self) -> int:
        """The memory of all places, if each has an adapter of the largest rank for all products."""
        elements = sum(
            len(parts) * product.in_features + product.out_features for product, parts in self._products
        )
        return self.places * self._max_rank * elements * self._dtype.itemsize

    def load(self, place: int, directory: Path, name: str) -> str:
        """Reads an adapter into a place. Returns its digest. Raises ConfigError if it can't be used."""
        begin = time.monotonic()
        matrices = read_adapter(directory, self._modules, self._max_rank, self._model.progress)
        digest = hash_adapter(directory)
        kept, entries = [], torch.zeros(self._table.shape[1:], dtype=torch.int64)
        for number, (_, parts) in enumerate(self._products):
            tensors = self._stack(parts, matrices)
            if tensors:
                down, up, scales = tensors
                entries[number] = torch.tensor([len(up), *(each.data_ptr() for each in (down, up, scales))])
                kept += [down, up, scales]
            self._model.progress()
        self._table[place] = entries.to(self._device)
        self._kept[place] = kept
        self._count_users()
        log.info(
            "adapter %s: rank %d, for %s; read from %s in %.1f s",
            show(name),
            max(len(each.down) for each in matrices.values()),
            ", ".join(sorted({module.rpartition(".")[2] for module in matrices})),
            directory,
            time.monotonic() - begin,
        )
        return digest

    def load_all(self, loras: Sequence[tuple[str, Path]]) -> list[Adapter]:
        """Reads adapters into the first places. Raises ConfigError if one can't be used."""
        loaded = []
        for place, (name, path) in enumerate(loras):
            with _naming(name, path):
                loaded.append(Adapter(name, str(path), self.load(place, path, name)))
        return loaded

    def drop(self, place: int) -> None:
        self._table[place] = 0
        del self._kept[place]
        self._count_users()

    def _count_users(self) -> None:
        users = self._table[:, :, RANK].count_nonzero(0).tolist()
        for (product, _), count in zip(self._products, users, strict=True):
            assert product.adapters is not None
            product.adapters.users = count

    def _stack(
        self, parts: Sequence[tuple[str, int]], matrices: Mapping[str, LowRank]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        """The matrices of a product's parts in the layout of `kernels.adapters.layout`; None if it has
        none."""
        found = [matrices.get(name) for name, _ in parts]
        rank = max((len(each.down) for each in found if each is not None), default=0)
        if not rank:
            return None
        inputs = next(each.down.shape[1] for each in found if each is not None)
        down = torch.zeros(len(parts), rank, inputs, dtype=self._dtype)
        up = torch.zeros(rank, sum(outputs for _, outputs in parts), dtype=self._dtype)
        scales = torch.zeros(len(parts))
        end = 0
        for number, ((_, outputs), each) in enumerate(zip(parts, found, strict=True)):
            start, end = end, end + outputs
            if each is not None:
                down[number, : len(each.down)] = each.down
                up[: len(each.down), start:end] = each.up.T
                scales[number] = each.scale
        return down.flatten(0, 1).to(self._device), up.to(self._device), scales.to(self._device)
