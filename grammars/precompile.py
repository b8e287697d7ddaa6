"""Fill numba's cache, so that no grammar waits for it: `python -m arbora.grammars.precompile`."""

from __future__ import annotations

from .masks.token_trie import tries_of
from .worker import Builder

if __name__ == "__main__":
    Builder(tries_of([(bytes([byte]), byte) for byte in range(256)], (256,), 257)).warm_up()
