"""JSON that commands print for other programs."""

import os
import subprocess
import sys

PRINT = "from arbora.frontend.cli.output import print_json; print_json({'a': 1}); print_json({'b': 2})"


def run(stdout: int) -> tuple[int, str]:
    """Runs `PRINT` in a process. Returns its exit code and what it wrote to standard error."""
    done = subprocess.run([sys.executable, "-c", PRINT], stdout=stdout, stderr=subprocess.PIPE, text=True)
    return done.returncode, done.stderr


def test_each_value_is_a_line() -> None:
    read, write = os.pipe()
    assert run(write) == (0, "")
    os.close(write)
    with os.fdopen(read) as lines:
        assert lines.read() == '{"a":1}\n{"b":2}\n'


def test_a_closed_pipe_ends_the_program_without_a_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    assert run(write) == (1, "")
    os.close(write)
