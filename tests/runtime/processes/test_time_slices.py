"""Short time slices of threads."""

import ctypes
import os
import platform
import re
import struct
import sys
import threading
from collections.abc import Callable

import pytest
from arbora.runtime.processes.time_slices import SHORT_NS, short_slices, use_short_slices

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="time slices are Linux's")

GET_ATTRIBUTES = {"x86_64": 315, "aarch64": 275, "riscv64": 275}


def in_effect() -> bool:
    major, minor = re.findall(r"\d+", platform.release())[:2]
    return (int(major), int(minor)) >= (6, 12)


def slice_and_niceness() -> tuple[int, int]:
    """Of this thread. Earlier versions of Linux report a slice of 0."""
    attributes = ctypes.create_string_buffer(56)
    number = GET_ATTRIBUTES[platform.machine()]
    assert ctypes.CDLL(None).syscall(number, 0, attributes, len(attributes), 0) == 0
    fields = struct.unpack("=IIQiIQQQ", attributes.raw[:48])
    return fields[5], fields[3]


def in_new_thread(function: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_only_threads_started_in_the_context_have_short_slices() -> None:
    before = slice_and_niceness()
    with short_slices():
        inside = in_new_thread(slice_and_niceness)
    assert (inside[0] == SHORT_NS) == in_effect()
    assert inside[1] == before[1]
    assert slice_and_niceness() == in_new_thread(slice_and_niceness) == before


def test_a_thread_with_short_slices_keeps_its_niceness_and_starts_normal_threads() -> None:
    before = slice_and_niceness()
    started = []

    def run() -> tuple[int, int]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 7)
        use_short_slices()
        started.append(in_new_thread(slice_and_niceness))
        return slice_and_niceness()

    nanoseconds, niceness = in_new_thread(run)
    assert (nanoseconds == SHORT_NS) == in_effect()
    assert niceness == 7
    assert started == [(before[0], 7)]
