"""The listening socket of a server: Unix sockets, their files and the errors of a wrong path."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from arbora.frontend.cli.main import build_parser, serve_config
from arbora.frontend.launch.listening import MAX_PATH_BYTES, Listening
from arbora.frontend.launch.serve import serve
from arbora.runtime.config import ServeConfig
from arbora.runtime.errors import ConfigError
from fake_server import fake_commands


@pytest.fixture
def path() -> Iterator[Path]:
    """A short path, as those of sockets must be."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory) / "s"


def on(path: Path) -> ServeConfig:
    return ServeConfig(model=path, served_model_name="m", uds=path)


def can_connect(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o755), (0o007, 0o770)])
def test_a_unix_socket_is_made_with_the_umask_and_removed_at_the_end(
    path: Path, umask: int, mode: int
) -> None:
    before = os.umask(umask)
    try:
        listening = Listening.open(on(path))
    finally:
        os.umask(before)
    assert listening.url == f"unix:{path}"
    assert path.stat().st_mode & 0o777 == mode
    assert can_connect(path)
    listening.close()
    assert not path.exists()


def test_the_socket_of_a_killed_server_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
        killed.listen()
    assert path.is_socket() and not can_connect(path)
    listening = Listening.open(on(path))
    assert can_connect(path)
    listening.close()


def test_a_full_directory_for_temporary_files_is_reported_and_leaves_no_socket(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = tempfile.TemporaryDirectory(dir=path.parent)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "gettempdir", lambda: full.name)
    for owner, name in ((ServeConfig, "save"), (tempfile, "mkdtemp")):
        monkeypatch.setattr(owner, name, fail)
        with pytest.raises(ConfigError, match="No space left on device"):
            serve(on(path), fake_commands())
        assert not path.exists()
        assert os.listdir(full.name) == []
    full.cleanup()


def test_the_socket_of_a_live_server_is_left_to_it(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(0)
        for _ in range(3):  # also while its queue is full
            with pytest.raises(ConfigError, match=f"--host unix:{path}: a server listens there already"):
                Listening.open(on(path))
        assert path.is_socket()


def test_another_file_is_left_alone(path: Path) -> None:
    path.write_text("text")
    with pytest.raises(ConfigError, match=f"--host unix:{path}: this file is not a socket"):
        Listening.open(on(path))
    assert path.read_text() == "text"


def test_a_socket_that_has_replaced_the_servers_own_is_not_removed(path: Path) -> None:
    listening = Listening.open(on(path))
    path.rename(path.with_name("old"))
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        listening.close()
        assert path.is_socket()


def test_a_path_without_its_directory_is_refused(path: Path) -> None:
    wrong = path / "nothing" / "s"
    with pytest.raises(ConfigError, match=f"--host unix:{wrong}: can't listen there \\(No such file"):
        Listening.open(on(wrong))


def test_a_long_path_is_refused_with_its_length(path: Path) -> None:
    wrong = path.with_name("a" * MAX_PATH_BYTES)
    with pytest.raises(ConfigError, match=f"at most 107 bytes, this one {len(str(wrong))}"):
        Listening.open(on(wrong))


@pytest.mark.parametrize("flag", ["--port", "--ssl-certfile"])
def test_a_unix_socket_excludes_a_port(path: Path, flag: str) -> None:
    flags = ["serve", "--host", f"unix:{path}", flag, "1"]
    with pytest.raises(ConfigError, match=f"{flag} has no meaning for a Unix socket: leave it out."):
        serve_config(vars(build_parser().parse_args(flags)), {})
