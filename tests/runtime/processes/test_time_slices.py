"""Short time slices of threads."""

import ctypes
import os
import platform
import struct
import threading

from arbora.runtime.processes.time_slices import SHORT_NS, short_slices, use_short_slices

GET_ATTRIBUTES = {"x86_64": 315, "aarch64": 275, "riscv64": 275}[platform.machine()]
IN_EFFECT = tuple(map(int, platform.release().split(".")[:2])) >= (6, 12)


def slice_and_niceness() -> tuple[int, int]:
    """Of this thread. Earlier versions of Linux report a slice of 0."""
    attributes = ctypes.create_string_buffer(56)
    assert ctypes.CDLL(None).syscall(GET_ATTRIBUTES, 0, attributes, len(attributes), 0) == 0
    fields = struct.unpack("=IIQiIQQQ", attributes.raw[:48])
    return fields[5], fields[3]


def in_new_thread() -> tuple[int, int]:
    found = []
    thread = threading.Thread(target=lambda: found.append(slice_and_niceness()))
    thread.start()
    thread.join()
    return found[0]


def test_only_threads_started_in_the_context_have_short_slices() -> None:
    before = slice_and_niceness()
    with short_slices():
        inside = in_new_thread()
    assert (inside[0] == SHORT_NS) == IN_EFFECT
    assert inside[1] == before[1]
    assert slice_and_niceness() == in_new_thread() == before


def test_niceness_stays() -> None:
    found = []

    def run() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 7)
        use_short_slices()
        found.append(slice_and_niceness())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    ((_, niceness),) = found
    assert niceness == 7
