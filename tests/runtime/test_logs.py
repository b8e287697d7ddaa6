"""The log lines of a server's processes."""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from arbora.runtime.model.compiling import CompilationNotice
from numba.core.event import install_listener

COMPILED = "from numba import njit\n\n\n@njit(cache=True)\ndef double(x):\n    return 2 * x\n"
SAYS = """
import logging
from arbora.runtime.logs import write_log
write_log("info")
for name in ("arbora.scheduler", "uvicorn.error"):
    logging.getLogger(name).debug("details")
    logging.getLogger(name).info("news")
    logging.getLogger(name).warning("worries")
"""


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
from arbora.runtime.model.compiling import announce_compilation
announce_compilation("cuda")
"""


def call_doubles(source: Path) -> None:
    """Calls a function with two types, in a fresh module: earlier compiled code is found only on disk."""
    spec = importlib.util.spec_from_file_location("doubles", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (module.double(1), module.double(1.5)) == (2, 3.0)


def test_a_bare_line_has_nothing_around_it() -> None:
    says = 'import logging\nfrom arbora.runtime.logs import BARE, write_log\nwrite_log("info")\n'
    says += 'logging.getLogger("a").info("%s", "{}", extra=BARE)'
    said = subprocess.run([sys.executable, "-c", says], capture_output=True, text=True, check=True)
    assert said.stderr == "{}\n"


def test_every_line_has_the_same_format_in_all_processes() -> None:
    said = subprocess.run([sys.executable, "-c", SAYS], capture_output=True, text=True, check=True)
    assert said.stderr == 2 * "arbora: news\narbora: warning: worries\n"


def test_compilation_is_logged_once_and_only_if_it_happens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "doubles.py"
    source.write_text(COMPILED)
    with caplog.at_level(logging.INFO), install_listener("numba:compile", CompilationNotice()):
        call_doubles(source)
        assert [message.partition(",")[0] for message in caplog.messages] == ["compiling kernels"]
    caplog.clear()
    with caplog.at_level(logging.INFO), install_listener("numba:compile", CompilationNotice()):
        call_doubles(source)
        assert caplog.messages == []


def test_compiled_triton_kernels_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    notice = CompilationNotice()
    with caplog.at_level(logging.INFO):
        notice.on_triton(cache_hit=True, src=None)
        assert caplog.messages == []
        for _ in range(2):
            notice.on_triton(cache_hit=False, src=None)
        assert len(caplog.messages) == 1


def test_compilation_can_be_announced_without_triton() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_TRITON], check=True)
