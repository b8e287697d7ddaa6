"""Stored responses and files belong to the key that stored them, also after keys were introduced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from batch_world import BatchWorld, batch_world, chat
from http_world import MODEL

pytestmark = pytest.mark.asyncio


async def stored(batches: BatchWorld) -> list[str]:
    """The paths of a new response, conversation and file."""
    client = batches.client
    response = await client.responses.create(model=MODEL, input="Hello")
    conversation = await client.conversations.create(items=[{"role": "user", "content": "Hello"}])
    file = await batches.upload(chat("a"))
    return [
        f"/v1/responses/{response.id}",
        f"/v1/responses/{response.id}/input_items",
        f"/v1/conversations/{conversation.id}/items",
        f"/v1/files/{file.id}",
        f"/v1/files/{file.id}/content",
    ]


async def statuses(batches: BatchWorld, paths: list[str], key: str | None) -> set[int]:
    headers: Any = {} if key is None else {"authorization": f"Bearer {key}"}
    return {(await batches.world.http.get(path, headers=headers)).status_code for path in paths}


async def test_no_key_reads_what_was_stored_before_there_were_keys(tmp_path: Path) -> None:
    async with batch_world(tmp_path, data_size=1 << 30) as batches:
        open_paths = await stored(batches)
        assert await statuses(batches, open_paths, None) == {200}
    async with batch_world(tmp_path, api_keys=("one", "two"), data_size=1 << 30) as batches:
        assert (
            await statuses(batches, open_paths, "one") == await statuses(batches, open_paths, "two") == {404}
        )
        assert await statuses(batches, open_paths, None) == {401}
        keyed_paths = await stored(batches)
        assert await statuses(batches, keyed_paths, "one") == {200}
        assert await statuses(batches, keyed_paths, "two") == {404}
        assert (await batches.with_key("two").files.list()).data == []
    async with batch_world(tmp_path, data_size=1 << 30) as batches:
        assert await statuses(batches, open_paths, None) == {200}, "the clients without keys stored it"
        assert await statuses(batches, keyed_paths, None) == {404}
