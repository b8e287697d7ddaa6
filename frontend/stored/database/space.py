"""The space that a database takes: its pages in use, and its free pages."""

from __future__ import annotations

import aiosqlite

PIECE_PAGES = 1024  # removed from a file in one transaction
KEPT_PAGES = 1024  # free pages that stay in a file for the next rows


async def bytes_in_use(connection: aiosqlite.Connection) -> int:
    """The bytes of the database's pages that hold something."""
    pages = await _pragma(connection, "page_count") - await free_pages(connection)
    return pages * await _pragma(connection, "page_size")


async def free_pages(connection: aiosqlite.Connection) -> int:
    return await _pragma(connection, "freelist_count")


async def shrink(connection: aiosqlite.Connection) -> bool:
    """Removes some free pages from the file, if it has many. True if it did.

    The file gets shorter with the next checkpoint of the write-ahead log.
    """
    spare = await free_pages(connection) - KEPT_PAGES
    if spare <= 0:
        return False
    await connection.execute_fetchall(f"PRAGMA incremental_vacuum({min(spare, PIECE_PAGES)})")
    return True


async def _pragma(connection: aiosqlite.Connection, name: str) -> int:
    ((value,),) = await connection.execute_fetchall(f"PRAGMA {name}")
    return int(value)
