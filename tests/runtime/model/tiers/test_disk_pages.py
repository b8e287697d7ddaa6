"""Pages on disk are read back whole or not at all, and stay within a limit of bytes."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from arbora.runtime.model.tiers.disk import FILE_NAME, DiskStore, ForeignFileError, StoredPage, least_limit
from hypothesis import given, settings
from hypothesis import strategies as st

SIZE = 40_000
LIMIT = 64 << 20


def page(number: int, namespace: str = "", size: int = SIZE) -> StoredPage:
    return StoredPage(key(number), namespace, memoryview(content(number, size)))


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def content(number: int, size: int = SIZE) -> bytes:
    return bytes([number % 251, number // 251 % 251]) * (size // 2)


def read(disk: DiskStore, number: int, size: int = SIZE) -> bool:
    """Whether the page is there; then it is what was written."""
    place = bytearray(size)
    found = disk.read(key(number), memoryview(place))
    assert not found or place == content(number, size)
    return found


def test_pages_outlive_the_store(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path, LIMIT)
    disk.write([page(1, "a"), page(2, "b")])
    disk.close()
    again = DiskStore(tmp_path, LIMIT)
    assert again.keys == {key(1), key(2)}
    assert [read(again, number) for number in (1, 2, 3)] == [True, True, False]


def test_only_its_owner_may_read_the_file(tmp_path: Path) -> None:
    DiskStore(tmp_path / "new", LIMIT)
    assert (tmp_path / "new").stat().st_mode & 0o77 == 0
    assert (tmp_path / "new" / FILE_NAME).stat().st_mode & 0o77 == 0


def test_it_stays_within_its_limit_and_evicts_the_least_recently_used_pages(tmp_path: Path) -> None:
    limit = 2 << 20
    disk = DiskStore(tmp_path, limit)
    for number in range(100):
        disk.write([page(number)])
        disk.touch([key(0)])
        assert disk.bytes_used <= limit
    assert (tmp_path / FILE_NAME).stat().st_size <= limit
    assert read(disk, 0)
    assert not read(disk, 1)
    kept = sorted(int.from_bytes(kept, "big") for kept in disk.keys)
    assert kept == [0, *range(100 - len(kept) + 1, 100)]
    assert len(kept) * SIZE > limit / 2


@pytest.mark.parametrize(("short_by", "kept"), [(0, 8), (1, 0)])
def test_the_least_limit_holds_the_pages_that_are_written_together(
    tmp_path: Path, short_by: int, kept: int
) -> None:
    disk = DiskStore(tmp_path, least_limit(8 * SIZE) - short_by)
    disk.write([page(number) for number in range(8)])
    assert len(disk.keys) == kept


def test_a_file_shrinks_to_a_lower_limit(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path, LIMIT)
    disk.write([page(number) for number in range(100)])
    disk.touch([key(0)])
    disk.close()
    limit = (tmp_path / FILE_NAME).stat().st_size // 2
    small = DiskStore(tmp_path, limit)
    small.shrink()
    assert limit / 2 < (tmp_path / FILE_NAME).stat().st_size <= limit
    kept = sorted(int.from_bytes(each, "big") for each in small.keys)
    assert kept == [0, *range(100 - len(kept) + 1, 100)]
    assert all(read(small, number) for number in kept)


def test_a_file_that_can_not_be_made_smaller_is_used_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(sqlite3.Connection):
        def execute(self, *query: Any) -> sqlite3.Cursor:
            if query == ("VACUUM",):
                raise sqlite3.OperationalError("database or disk is full")
            return super().execute(*query)

    connect = sqlite3.connect
    disk = DiskStore(tmp_path, LIMIT)
    disk.write([page(number) for number in range(40)])
    disk.close()
    monkeypatch.setattr(sqlite3, "connect", lambda *where, **how: connect(*where, factory=Full, **how))
    small = DiskStore(tmp_path, 20 * SIZE)
    small.shrink()
    assert "could not be made smaller, database or disk is full" in caplog.text
    assert small.bytes_used <= 20 * SIZE
    assert read(small, 39)


def test_the_order_of_use_outlives_the_store(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path, LIMIT)
    disk.write([page(number) for number in range(20)])
    disk.touch([key(0), key(1)])
    limit = disk.bytes_used - (1 << 18)
    disk.close()
    small = DiskStore(tmp_path, limit)
    small.write([page(20)])
    assert all(read(small, number) for number in (0, 1, 20))
    assert not read(small, 2)


def test_a_later_page_of_a_prefix_goes_before_an_earlier_one(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path, LIMIT)
    disk.write([page(number) for number in range(20)])
    disk.touch([key(number) for number in range(20)])
    limit = disk.bytes_used - (1 << 18)
    disk.close()
    small = DiskStore(tmp_path, limit)
    small.write([page(20)])
    assert read(small, 0)
    assert not read(small, 19)


@pytest.mark.parametrize("where", [0, SIZE // 2, SIZE - 1])
def test_a_damaged_page_is_not_served(tmp_path: Path, where: int, caplog: pytest.LogCaptureFixture) -> None:
    disk = DiskStore(tmp_path, LIMIT)
    disk.write([page(1), page(2)])
    disk.close()
    damaged = bytearray(content(1))
    damaged[where] ^= 1
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        database.execute(
            "UPDATE contents SET content = ? WHERE id = (SELECT content FROM pages WHERE key = ?)",
            (bytes(damaged), key(1)),
        )
    again = DiskStore(tmp_path, LIMIT)
    with caplog.at_level(logging.WARNING):
        assert not read(again, 1)
    assert "damaged" in caplog.text
    assert again.keys == {key(2)}
    assert read(again, 2)


def test_a_page_under_another_ones_key_is_not_served(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path, LIMIT)
    disk.write([page(1), page(2)])
    disk.close()
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        [one], [two] = database.execute("SELECT content FROM pages ORDER BY key").fetchall()
        database.execute("UPDATE pages SET content = ? WHERE content = ?", (two, one))
    assert not read(DiskStore(tmp_path, LIMIT), 1)


def test_a_page_of_another_size_is_not_served(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path, LIMIT)
    disk.write([page(1)])
    assert not disk.read(key(1), memoryview(bytearray(SIZE + 2)))


@given(at=st.floats(0, 1, exclude_max=True), bits=st.integers(1, 255), cut=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_torn_or_damaged_file_gives_whole_pages_or_errors(
    tmp_path_factory: pytest.TempPathFactory, at: float, bits: int, cut: bool
) -> None:
    directory = tmp_path_factory.mktemp("torn")
    disk = DiskStore(directory, LIMIT)
    disk.write([page(number, size=4000) for number in range(8)])
    disk.close()
    data = bytearray((directory / FILE_NAME).read_bytes())
    position = int(at * len(data))
    if cut:
        del data[position:]
    else:
        data[position] ^= bits
    (directory / FILE_NAME).write_bytes(data)
    try:
        again = DiskStore(directory, LIMIT)
        for number in range(8):
            read(again, number, size=4000)
        again.write([page(9, size=4000)])
        read(again, 9, size=4000)
    except (sqlite3.Error, ForeignFileError):
        pass


def test_a_damaged_name_of_a_table_is_an_error_of_the_file(tmp_path: Path) -> None:
    DiskStore(tmp_path, LIMIT).close()
    data = (tmp_path / FILE_NAME).read_bytes()
    for position in range(data.index(b"CREATE TABLE"), data.index(b"CREATE TABLE") + 40):
        damaged = bytearray(data)
        damaged[position] = 0xCC
        (tmp_path / FILE_NAME).write_bytes(damaged)
        with contextlib.suppress(sqlite3.Error, ForeignFileError):
            DiskStore(tmp_path, LIMIT).close()


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        database.execute("CREATE TABLE notes (text)")
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(ForeignFileError, match="not a page store"):
        DiskStore(tmp_path, LIMIT)
    assert (tmp_path / FILE_NAME).read_bytes() == before
    (tmp_path / FILE_NAME).write_text("Dear diary, " * 1000)
    with pytest.raises(sqlite3.DatabaseError):
        DiskStore(tmp_path, LIMIT)


def test_a_full_disk_is_reported_and_keeps_the_stored_pages(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path, LIMIT)
    disk.write([page(1)])
    [pages] = disk._database.execute("PRAGMA page_count").fetchone()
    disk._database.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(sqlite3.Error, match="full"):
        disk.write([page(number) for number in range(2, 9)])
    assert [read(disk, number) for number in (1, 2)] == [True, False]


def test_another_format_is_left_alone(tmp_path: Path) -> None:
    DiskStore(tmp_path, LIMIT).close()
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(ForeignFileError, match="another format"):
        DiskStore(tmp_path, LIMIT)


def test_two_servers_share_a_file(tmp_path: Path) -> None:
    one, other = DiskStore(tmp_path, LIMIT), DiskStore(tmp_path, LIMIT)
    one.write([page(1), page(2)])
    other.write([page(2), page(3)])
    assert all(read(one, number) for number in (1, 2))
    assert all(read(other, number) for number in (2, 3))


def test_namespaces_are_forgotten_alone_or_by_scope(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path, LIMIT)
    disk.write([page(1, "ann/"), page(2, "ann/x"), page(3, "bob/"), page(4, "bob/%"), page(5, "bob/xy")])
    assert disk.forget("ann/", "ann/x") == 1
    assert disk.keys == {key(number) for number in (1, 3, 4, 5)}
    assert disk.forget("bob/%", None) == 1
    assert disk.keys == {key(number) for number in (1, 3, 5)}
    assert disk.forget("bob/", None) == 2
    erase(disk)
    disk.close()
    assert DiskStore(tmp_path, LIMIT).keys == {key(1)}


def erase(disk: DiskStore) -> int:
    """How many more calls it took."""
    calls = 0
    while disk.erase():
        calls += 1
    return calls


def numbers_in(directory: Path, most: int) -> list[int]:
    """The pages of which some bytes stand in the file."""
    file = (directory / FILE_NAME).read_bytes()
    return [number for number in range(1, most) if content(number)[:64] in file]


def test_no_byte_of_forgotten_pages_stays_in_the_file(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path, LIMIT)
    disk.write([page(1, "ann/"), page(2, "bob/")])
    disk.forget("ann/", None)
    erase(disk)
    assert numbers_in(tmp_path, 3) == [2]


@pytest.mark.parametrize("opened_again", [False, True])
def test_no_byte_of_evicted_or_discarded_pages_stays_in_the_file(tmp_path: Path, opened_again: bool) -> None:
    disk = DiskStore(tmp_path, 20 * SIZE)
    disk.forget("ann/", None)
    erase(disk)
    for number in range(1, 60):
        disk.write([page(number, "ann/")])
    disk.discard([key(58)])
    if opened_again:
        disk.close()
        disk = DiskStore(tmp_path, 20 * SIZE)
    kept = {int.from_bytes(each, "big") for each in disk.keys}
    assert set(numbers_in(tmp_path, 60)) > kept
    assert disk.forget("ann/", None) == len(kept)
    erase(disk)
    assert numbers_in(tmp_path, 60) == []
    assert (tmp_path / FILE_NAME).stat().st_size <= 20 * SIZE


def test_no_byte_of_pages_that_another_server_removed_stays_in_the_file(tmp_path: Path) -> None:
    one, other = DiskStore(tmp_path, LIMIT), DiskStore(tmp_path, LIMIT)
    one.write([page(1, "ann/"), page(2, "ann/"), page(3, "bob/")])
    other.discard([key(1)])
    one.forget("ann/", None)
    erase(one)
    assert numbers_in(tmp_path, 4) == [3]


def test_much_is_forgotten_at_once_and_erased_some_at_a_time(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path, LIMIT)
    disk.write([page(number, "ann/") for number in range(1, 41)])
    assert disk.forget("ann/", None) == 40
    assert not disk.keys
    disk.write([page(100, "bob/")])
    assert erase(disk) == 2
    assert numbers_in(tmp_path, 101) == [100]


def test_a_file_that_is_clean_is_not_overwritten_again(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path, LIMIT)
    disk.write([page(number, "ann/") for number in range(1, 9)])
    disk.forget("ann/", None)
    erase(disk)
    disk.close()
    again = DiskStore(tmp_path, LIMIT)
    again.write([page(9, "ann/")])
    again.forget("ann/", None)
    statements: list[str] = []
    again._database.set_trace_callback(statements.append)
    erase(again)
    assert any("DELETE FROM contents" in statement for statement in statements)
    assert not any("zeroblob" in statement for statement in statements)


def test_leftover_zeros_are_removed_when_the_file_is_opened_again(tmp_path: Path) -> None:
    disk = DiskStore(tmp_path, LIMIT)
    before = disk.bytes_used
    disk._database.execute("INSERT INTO contents VALUES (-1, zeroblob(1000000))")
    disk.close()
    assert DiskStore(tmp_path, LIMIT).bytes_used == before


def test_the_limit_holds_for_pages_of_other_servers_and_for_larger_pages(tmp_path: Path) -> None:
    limit = 20 * SIZE
    one, other = DiskStore(tmp_path, limit), DiskStore(tmp_path, limit)
    for number in range(16):
        other.write([page(number)])
    for number in range(16, 24):
        one.write([page(number)])
        assert one.bytes_used <= limit
    assert read(one, 23)
    one.write([page(number) for number in range(30, 60)])
    assert one.bytes_used <= limit


def test_expected_pages_count_as_used_in_that_order(tmp_path: Path) -> None:
    limit = 20 * SIZE
    disk = DiskStore(tmp_path, limit)
    disk.write([page(100), page(101)])
    disk.expect([key(number) for number in range(40)])
    for number in range(40):
        disk.write([page(number)])
    assert disk.keys == {key(number) for number in range(len(disk.keys))}
    assert len(disk.keys) > 10


def test_a_killed_writer_leaves_whole_pages(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from arbora.runtime.model.tiers.disk import DiskStore, StoredPage
disk = DiskStore(Path(sys.argv[1]), 1 << 30)
for number in range(1000):
    content = bytes([number % 251, number // 251 % 251]) * 20_000
    disk.write([StoredPage(number.to_bytes(16, "big"), "", memoryview(content))])
    print(number, flush=True)
"""
    writer = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    assert writer.stdout is not None
    for line in writer.stdout:
        if int(line) == 20:
            break
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    disk = DiskStore(tmp_path, LIMIT)
    assert len(disk.keys) >= 21
    assert all(read(disk, int.from_bytes(kept, "big")) for kept in list(disk.keys))
