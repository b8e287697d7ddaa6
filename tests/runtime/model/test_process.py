"""The model process as the scheduler and the supervisor see it: messages in, messages out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import graphless_model
import msgspec
import numpy as np
import pytest
import zmq
from arbora.runtime.messages import (
    Alive,
    Failed,
    Message,
    ModelInbox,
    ModelReady,
    Row,
    SchedulerInbox,
    SlotSetup,
    StepMasks,
    StepPlan,
    StepResult,
    SupervisorInbox,
)
from arbora.runtime.model.process import StepQueue
from arbora.runtime.processes import sockets
from arbora.runtime.processes.child import RANK_FILE_VARIABLE, RANK_VARIABLE
from arbora.runtime.processes.heartbeat import Heartbeat
from arbora.runtime.vocabulary import build_vocabulary, save_vocabulary
from checkpoints import VOCAB_SIZE, edit_config, random_model, save_model
from stack_automata import load_message, tables
from step_driver import GREEDY, StepDriver, packed, serve_config, unpacked

EPOCH = 3
WAIT_MS = 60_000
PROMPT = [9, 8, 7, 6, 5]
WORDS = -(-VOCAB_SIZE // 32)
PROGRAM = ("-m", "arbora.runtime.model.process")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(random_model("llama", num_hidden_layers=1), tmp_path_factory.mktemp("model"))


class Peers:
    """The scheduler's and the supervisor's sockets around one model process."""

    def __init__(
        self,
        directory: Path,
        model: Path,
        program: Sequence[str] = PROGRAM,
        stderr: int | None = None,
        tp: int = 1,
    ) -> None:
        """tp: ranks, of which the process is the first one; it exchanges nothing with the others"""
        serve_config(model, tp=tp).save(directory)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.supervisor = self._inbox(sockets.supervisor_address(directory), SupervisorInbox)
        self.scheduler = self._inbox(sockets.Replica(directory, EPOCH).scheduler, SchedulerInbox)
        self.model = sockets.Outbox(self._context, sockets.Replica(directory, EPOCH).model(), EPOCH)
        command = [sys.executable, *program, str(directory), str(EPOCH), "0"]
        with tempfile.TemporaryFile() as file:
            rank = {RANK_VARIABLE: "0", RANK_FILE_VARIABLE: str(file.fileno())}
            self.process = subprocess.Popen(
                [*command, str(os.getpid())],
                stderr=stderr,
                env={**os.environ, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1", **rank},
                pass_fds=[file.fileno()],
            )

    def ready(self) -> ModelReady:
        message = self.scheduler.receive(WAIT_MS)
        assert isinstance(message, ModelReady), self.process.poll()
        return message

    def result(self) -> StepResult:
        message = self.scheduler.receive(WAIT_MS)
        assert isinstance(message, StepResult), self.process.poll()
        return message

    def told(self) -> SupervisorInbox | None:
        """The next message to the supervisor that is not a heartbeat."""
        deadline = time.monotonic() + WAIT_MS / 1000
        while isinstance(message := self.supervisor.receive(WAIT_MS), Alive):
            assert time.monotonic() < deadline, "heartbeats only"
        return message

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.model.close(linger_ms=0)
        self.supervisor.close()
        self.scheduler.close()
        self._context.term()

    def _inbox(self, address: str, kind: Any) -> sockets.Inbox[Any]:
        return sockets.Inbox(self._context, address, kind, EPOCH)


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="arb") as path:
        yield Path(path)


@pytest.fixture
def peers(directory: Path, model: Path) -> Iterator[Peers]:
    peers = Peers(directory, model)
    yield peers
    peers.close()


def first_row(slot: int = 0, **fields: Any) -> Row:
    return Row(slot=slot, start=0, tokens=packed(PROMPT), new_pages=packed([slot]), **fields)


def mask_of(tokens: list[int]) -> bytes:
    flags = np.zeros(WORDS * 32, np.uint8)
    flags[tokens] = 1
    return np.packbits(flags, bitorder="little").tobytes()


def test_queued_plans_run_in_order_until_a_stop_message(peers: Peers, model: Path) -> None:
    ready = peers.ready()
    assert (ready.slots, ready.page_size, ready.vocab_size, ready.device) == (8, 16, VOCAB_SIZE, "cpu")
    peers.model.send(StepPlan(1, [first_row()], [SlotSetup(0, GREEDY)]))
    for step in range(2, 9):
        peers.model.send(StepPlan(step, [Row(0)]))
    results = [peers.result() for _ in range(8)]
    assert [result.step for result in results] == list(range(1, 9))
    driver = StepDriver.load(model)
    driver.start(0)
    expected = [driver.prefill(0, PROMPT), *(driver.decode([0])[0] for _ in range(7))]
    assert [unpacked(result.tokens)[0] for result in results] == expected
    peers.process.send_signal(signal.SIGINT)
    peers.model.send(StepPlan(9, []))
    assert peers.result().step == 9
    peers.process.terminate()
    assert peers.process.wait(WAIT_MS / 1000) == -signal.SIGTERM


def test_masks_may_come_before_or_after_their_plan(peers: Peers) -> None:
    peers.ready()
    peers.model.send(StepMasks(1, packed([0]), mask_of([101])))
    peers.model.send(StepPlan(1, [first_row(host_mask=True)], [SlotSetup(0, GREEDY)]))
    peers.model.send(StepPlan(2, [Row(0, host_mask=True)]))
    peers.model.send(StepPlan(3, [Row(0)]))
    assert unpacked(peers.result().tokens) == [101]
    peers.model.send(StepMasks(2, packed([0]), mask_of([102])))
    assert unpacked(peers.result().tokens) == [102]
    assert peers.result().errors == []


def test_a_grammar_uses_the_vocabulary_file(peers: Peers, directory: Path) -> None:
    peers.ready()
    tokens = [b"ab" if i == 200 else bytes([i % 256]) if i < 256 else b"" for i in range(VOCAB_SIZE)]
    vocabulary = build_vocabulary(tokens, [i >= 256 for i in range(VOCAB_SIZE)], (257,))
    save_vocabulary(vocabulary, directory)
    classes = np.zeros(256, np.uint8)
    classes[ord("a")], classes[ord("b")] = 1, 2
    transitions = np.array([[-1, 1, -1], [-1, -1, 2], [-1, -1, -1]], np.int32)
    masks = np.frombuffer(mask_of([200]) + mask_of([257]), np.int32).reshape(2, -1)
    peers.model.send(load_message(5, tables(classes, transitions, [0, 1, 1], masks)))
    peers.model.send(StepPlan(1, [first_row()], [SlotSetup(0, GREEDY, grammar=5)]))
    result = peers.result()
    assert (unpacked(result.tokens), unpacked(result.states)) == ([200], [2])


def test_a_model_that_cant_be_served_is_reported_to_the_supervisor(
    directory: Path, model: Path, tmp_path: Path
) -> None:
    save_model(random_model("llama", num_hidden_layers=1), tmp_path)
    edit_config(tmp_path, architectures=["T5ForConditionalGeneration"], model_type="t5")
    peers = Peers(directory, tmp_path)
    message = peers.told()
    assert isinstance(message, Failed)
    assert message.role == "model" and "t5" in message.message.lower()
    assert peers.process.wait(WAIT_MS / 1000) == 1
    peers.close()


def test_a_model_whose_graphs_cant_be_captured_is_loaded_again_without_them(
    directory: Path, model: Path
) -> None:
    peers = Peers(directory, model, (graphless_model.__file__,), subprocess.PIPE)
    peers.ready()
    peers.model.send(StepPlan(1, [first_row()], [SlotSetup(0, GREEDY)]))
    assert peers.result().step == 1
    peers.process.terminate()
    _, said = peers.process.communicate(timeout=WAIT_MS / 1000)
    peers.close()
    warnings = [line for line in said.decode().splitlines() if line.startswith("arbora: warning: CUDA")]
    assert len(warnings) == 1
    for words in ("there is no GPU", "one by one, which is slower", "--debug eager"):
        assert words in warnings[0]


def test_ranks_whose_graphs_cant_be_captured_end_with_what_to_do(directory: Path, model: Path) -> None:
    peers = Peers(directory, model, (graphless_model.__file__,), tp=2)
    message = peers.told()
    assert isinstance(message, Failed)
    assert "there is no GPU. Give --debug eager" in message.message
    assert peers.process.wait(WAIT_MS / 1000) == 1
    peers.close()


class ScriptedInbox:
    """Gives the messages of a list, then nothing."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages

    def receive(self, timeout_ms: int | None = None) -> Message | None:
        return self.messages.pop(0) if self.messages else None


def queue(*messages: Message, heartbeat: Heartbeat | None = None) -> StepQueue:
    for message in messages:
        msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ModelInbox)
    return StepQueue(ScriptedInbox(list(messages)), heartbeat or Heartbeat())  # type: ignore[arg-type]


def test_plans_that_come_while_masks_are_awaited_keep_their_order() -> None:
    first, second = StepPlan(1, []), StepPlan(2, [])
    masks = StepMasks(1, b"", b"")
    post = queue(first, second, masks)
    assert post.next() is first
    assert post.masks(1) is masks
    assert post.next() is second


def test_masks_of_past_steps_are_dropped() -> None:
    late, wanted = StepMasks(1, b"", b""), StepMasks(2, b"", b"")
    post = queue(late, wanted)
    assert post.masks(2) is wanted
    assert post.masks(1, deadline=0) is None


def test_waiting_for_masks_ends_at_the_deadline() -> None:
    assert queue().masks(1, deadline=0.01) is None


def test_messages_come_before_the_device_is_asked() -> None:
    first, masks = StepPlan(1, []), StepMasks(2, b"", b"")
    post = queue(masks, first)
    assert post.next_unless(lambda: True) is first
    assert post.masks(2, deadline=0) is masks
    asked = iter([False, False, True])
    assert post.next_unless(lambda: next(asked)) is None
    assert next(asked, None) is None


def test_only_messages_are_progress_while_a_device_computes() -> None:
    marks: list[str] = []

    class Marked(Heartbeat):
        def working(self) -> None:
            marks.append("working")

        def resting(self) -> None:
            marks.append("resting")

    post = queue(StepPlan(1, []), heartbeat=Marked())
    post.next_unless(lambda: False)
    assert marks == ["working"]
    asked = iter([False, True])
    post.next_unless(lambda: next(asked))
    assert marks == ["working"]
