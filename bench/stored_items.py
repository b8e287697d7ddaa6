"""Measures stored conversations: the time of a page, and the longest wait of the event loop meanwhile.

    PYTHONSAFEPATH=1 python bench/stored_items.py --items 10000 --item-bytes 4000

It stores a conversation of that size, reads pages of it, and loads it as a prompt does. A task that wakes
every millisecond measures for how long each of these keeps the event loop from other requests: the table has
the longest time of a round, the median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from arbora.frontend.stored.records.paging import PageQuery
from arbora.frontend.stored.responses.protocol import Item, Part
from arbora.frontend.stored.responses.response_store import ResponseStore
from arbora.frontend.stored.responses.stored_items import decode_items, encode_items

TICK_S = 0.001
OWNER, CONVERSATION = "", "conv_1"


class Waits:
    """The longest time that a task had to wait for the event loop."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def watch(self) -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(TICK_S)
            self.longest_s = max(self.longest_s, time.perf_counter() - begun - TICK_S)


async def measure(name: str, rounds: int, work: Callable[[], Awaitable[object]]) -> None:
    times, longest = [], []
    for _ in range(rounds):
        waits = Waits()
        watching = asyncio.create_task(waits.watch())
        await asyncio.sleep(10 * TICK_S)
        begun = time.perf_counter()
        await work()
        times.append(time.perf_counter() - begun)
        await asyncio.sleep(10 * TICK_S)
        watching.cancel()
        longest.append(waits.longest_s)
    print(f"{name:28} {min(times) * 1000:9.1f} {median(longest) * 1000:9.1f}", flush=True)


async def run(options: argparse.Namespace, directory: Path) -> None:
    store = ResponseStore(directory, 64 << 30)
    conversations = store.conversations
    text = "x" * options.item_bytes
    items = [
        Item(id=f"msg_{number}", type="message", role="user", content=[Part(type="input_text", text=text)])
        for number in range(options.items)
    ]
    stored = await asyncio.to_thread(encode_items, items)
    size = sum(len(item.body) for item in stored)
    print(f"{options.items} items, {size / 1e6:.1f} MB\n\n{'':28} {'best ms':>9} {'loop ms':>9}")

    async def create() -> None:
        await conversations.add(OWNER, CONVERSATION, b"{}", stored)

    async def read() -> None:
        await conversations.read_all_items(OWNER, CONVERSATION)

    async def load() -> None:
        bodies = await conversations.read_all_items(OWNER, CONVERSATION)
        await asyncio.to_thread(decode_items, bodies)

    def page(after: str | None) -> Callable[[], Awaitable[object]]:
        query = PageQuery(20, after, True)
        return lambda: conversations.list_items(OWNER, CONVERSATION, query)

    await measure("store", 1, create)
    await measure("first page", options.rounds, page(None))
    await measure("page from the middle", options.rounds, page(f"msg_{options.items // 2}"))
    await measure("read all items", options.rounds, read)
    await measure("read and decode all items", options.rounds, load)
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--item-bytes", type=int, default=4000, help="characters of each item's text")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(options, Path(directory)))


if __name__ == "__main__":
    main()
