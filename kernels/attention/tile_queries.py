"""The queries of an item in the order in which tiles multiply them (see `tiles`)."""

import numpy as np

from ..common.numba_tools import compiled, pointer, shifted
from ..common.vectors import LANES
from .items import HEAD_DIM, Q_STRIDE, REPEAT, Q
from .plan import TOKEN, TOKENS
from .transposing import transpose_words


@compiled
def load_queries(arguments, item, head, lanes, query, copied):
    """query[w, lane] = word w of a query, for an item's queries; zeros in unused lanes.

    copied: memory for LANES queries
    """
    half = arguments[HEAD_DIM] // 2
    if half % LANES > 0:
        load_words(arguments, item, head, lanes, 1, query)
        return
    for first in range(0, lanes, LANES):
        some = min(LANES, item[TOKENS] * arguments[REPEAT] - first)
        for w in range(max(0, some) * half, LANES * half):
            copied[w] = np.uint32(0)
        for lane in range(some):
            source, to = _query_at(arguments, item, head, first + lane), shifted(copied, lane * half)
            for w in range(half):
                to[w] = source[w]
        for w in range(0, half, LANES):
            transpose_words(shifted(copied, w), half, shifted(query, w * lanes + first), lanes)


@compiled
def load_words(arguments, item, head, lanes, words, query):
    """As `load_queries`, word by word: query[w // words, lane, w % words] = word w of a query.

    lanes: the number of queries that `query` has room for
    """
    half = arguments[HEAD_DIM] // 2
    for i in range(half * lanes):
        query[i] = np.uint32(0)
    for lane in range(item[TOKENS] * arguments[REPEAT]):
        source = _query_at(arguments, item, head, lane)
        for w in range(half):
            query[(w // words * lanes + lane) * words + w % words] = source[w]


@compiled
def _query_at(arguments, item, head, lane):
    """Query number `lane` of an item, as a pointer to words of two elements."""
    head_dim, repeat = arguments[HEAD_DIM], arguments[REPEAT]
    row, query_head = item[TOKEN] + lane // repeat, head * repeat + lane % repeat
    place = row * arguments[Q_STRIDE] + query_head * head_dim
    return shifted(pointer(arguments[Q], np.uint32(0)), place // 2)
