"""Which children count as hung, by their signs of life."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from arbora.frontend.launch.watchdog import Finding, Reading, Timeouts, Watchdog, read_process
from arbora.runtime.processes.awake_clock import AwakeClock
from arbora.runtime.processes.heartbeat import Heartbeat

PID = 7
FINE = Finding(responds=True)
IDLE = Reading(stopped=False, ticks=100)
STOPPED = Reading(stopped=True, ticks=100)
TIMEOUTS = Timeouts(
    unresponsive_s=3, silent_s=10, stalled_s={"model": 120.0, "scheduler": 30.0, "tokenizer": 10.0}
)


@pytest.fixture
def watchdog() -> Watchdog:
    """A watchdog that knows a process which reported at time 0."""
    watchdog = Watchdog(TIMEOUTS)
    watchdog.begin(PID, 0)
    watchdog.heard(PID, 0.0, 0)
    watchdog.look("model", PID, IDLE, 0)
    return watchdog


def test_a_process_that_reports_is_fine_for_ever(watchdog: Watchdog) -> None:
    for second in range(1, 1000):
        watchdog.heard(PID, 0.0, second)
        assert watchdog.look("model", PID, IDLE, second) == FINE


def test_a_silent_process_does_not_respond_and_then_is_hung(watchdog: Watchdog) -> None:
    found = {second: watchdog.look("model", PID, STOPPED, second) for second in range(1, 12)}
    assert [second for second, finding in found.items() if not finding.responds] == list(range(4, 12))
    assert [second for second, finding in found.items() if finding.hung] == [11]
    assert found[11].hung == "has given no sign of life for 11 s"


def test_a_process_that_reports_again_in_time_is_healthy(watchdog: Watchdog) -> None:
    assert not watchdog.look("model", PID, STOPPED, 9).responds
    watchdog.heard(PID, 0.0, 9.5)
    assert watchdog.look("model", PID, IDLE, 10) == FINE


@pytest.mark.parametrize(("role", "bound"), [("model", 120), ("scheduler", 30), ("tokenizer", 10)])
def test_a_process_that_computes_without_reports_is_hung_after_its_roles_limit_for_progress(
    watchdog: Watchdog, role: str, bound: int
) -> None:
    found = [watchdog.look(role, PID, Reading(False, 100 + second), second) for second in range(bound + 2)]
    assert [finding.hung for finding in found[:-1]] == [""] * (bound + 1)
    assert found[-1].hung == f"has made no progress for {bound + 1} s"


def test_a_main_loop_that_is_stuck_is_hung_though_the_process_reports(watchdog: Watchdog) -> None:
    for second in range(121):
        watchdog.heard(PID, float(second), second)
        finding = watchdog.look("model", PID, Reading(False, 100 + second), second)
        assert not finding.hung
        assert finding.responds == (second <= 30)
    watchdog.heard(PID, 121.0, 121)
    assert watchdog.look("model", PID, IDLE, 121).hung == "has made no progress for 121 s"


def test_a_process_that_starts_may_wait_without_a_report_but_not_be_stopped() -> None:
    watchdog = Watchdog(TIMEOUTS)
    watchdog.begin(PID, 0)
    assert all(watchdog.look("model", PID, IDLE, second) == FINE for second in range(1000))
    assert watchdog.look("model", PID, STOPPED, 1010).hung


def test_only_reports_count_where_the_system_has_no_processor_time() -> None:
    watchdog = Watchdog(TIMEOUTS)
    watchdog.begin(PID, 0)
    assert watchdog.look("model", PID, None, 0) == watchdog.look("model", PID, None, 100) == FINE
    watchdog.heard(PID, 0.0, 100)
    assert watchdog.look("model", PID, None, 111).hung


def test_a_late_report_of_a_process_that_has_ended_is_not_kept(watchdog: Watchdog) -> None:
    watchdog.forget(PID)
    watchdog.heard(PID, 500.0, 1)
    watchdog.begin(PID, 2)  # another process with the same id
    assert watchdog.look("model", PID, IDLE, 3) == FINE


def test_a_process_that_gets_stuck_right_after_its_first_report_is_hung() -> None:
    watchdog = Watchdog(TIMEOUTS)
    watchdog.begin(PID, 0)
    watchdog.heard(PID, 0.0, 1)
    assert watchdog.look("tokenizer", PID, Reading(False, 100), 12).hung


def test_time_in_which_a_process_did_not_run_counts_for_nothing() -> None:
    clock = AwakeClock(most_s=2.0, now=1000.0)
    assert clock.tick(1001.0) == 1.0
    assert clock.tick(9000.0) == 3.0
    assert clock.tick(9001.5) == 4.5


def test_a_stopped_process_is_read_as_such() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        reading = read_process(child.pid)
        assert reading is not None and not reading.stopped
        child.send_signal(19)  # SIGSTOP
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        reading = read_process(child.pid)
        assert reading is not None and reading.stopped
    finally:
        child.kill()
        child.wait()
    assert read_process(child.pid) is None


def test_processor_time_is_read_for_any_program_name(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (a) b (c)) T 1 7 7 0 -1 4194560 1 0 0 0 31 11 0 0 20 0 1 0")
    assert read_process(7, tmp_path) == Reading(stopped=True, ticks=42)


class Seconds:
    """The time of a machine, in which a process reports every second unless it is frozen."""

    def __init__(self) -> None:
        self.now = 1000.0

    def pass_with_reports(self, heartbeat: Heartbeat, seconds: int) -> float:
        """Returns the last report."""
        stalled_s = 0.0
        for _ in range(seconds):
            self.now += 1.0
            stalled_s = heartbeat.stalled_s()
        return stalled_s


def test_a_heartbeat_reports_how_long_the_main_loop_has_made_no_progress() -> None:
    seconds = Seconds()
    heartbeat = Heartbeat(clock=lambda: seconds.now)
    seconds.pass_with_reports(heartbeat, 500)
    heartbeat.progress()  # while the process loads
    assert seconds.pass_with_reports(heartbeat, 1) == 0.0
    heartbeat.working()
    assert seconds.pass_with_reports(heartbeat, 60) == 60.0
    heartbeat.progress()
    assert seconds.pass_with_reports(heartbeat, 3) == 3.0
    heartbeat.resting()
    assert seconds.pass_with_reports(heartbeat, 1) == 0.0


def test_a_model_that_was_frozen_in_the_middle_of_a_step_with_its_supervisor_is_not_hung(
    watchdog: Watchdog,
) -> None:
    seconds = Seconds()
    heartbeat = Heartbeat(clock=lambda: seconds.now)
    supervisor = AwakeClock(2.0, seconds.now)
    heartbeat.working()
    seconds.pass_with_reports(heartbeat, 1)
    seconds.now += 300.0
    stalled_s = seconds.pass_with_reports(heartbeat, 1)
    watchdog.heard(PID, stalled_s, supervisor.tick(seconds.now))
    assert watchdog.look("model", PID, IDLE, supervisor.time) == FINE
    stalled_s = seconds.pass_with_reports(heartbeat, 119)
    watchdog.heard(PID, stalled_s, supervisor.time)
    assert watchdog.look("model", PID, IDLE, supervisor.time).hung
