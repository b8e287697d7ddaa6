"""A device without a GPU that runs work as late as streams and events allow, or at any time before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from arbora.runtime.model.tiers.copies import Copies


@dataclass(eq=False)
class Work:
    run: Callable[[], None]
    after: list[Work]
    done: bool = False


class LazyDevice:
    """Steps have a stream of their own."""

    def __init__(self) -> None:
        self._all: list[Work] = []
        self.steps = LazyStream(self)

    def add(self, work: Work) -> Work:
        self._all.append(work)
        return work

    def finish(self, work: Work) -> None:
        """Runs work, and before it only the work that must come first."""
        if not work.done:
            for earlier in work.after:
                self.finish(earlier)
            work.run()
            work.done = True

    def advance(self, random: Random) -> None:
        """Runs any work that may be the next."""
        ready = [work for work in self._all if not work.done and all(earlier.done for earlier in work.after)]
        if ready:
            self.finish(random.choice(ready))


class LazyStream:
    """See `CopyStream`."""

    def __init__(self, device: LazyDevice) -> None:
        self._device = device
        self._last: list[Work] = []
        self.precedents: list[Work] = []  # of the next launch

    def launch(
        self, copy: Callable[[], None], after: Sequence[Copies] = (), after_steps: bool = False
    ) -> LazyCopies:
        first = [copies.work for copies in after if isinstance(copies, LazyCopies)]
        steps = self._device.steps._last if after_steps else []
        work = self._device.add(Work(copy, [*self._last, *self.precedents, *first, *steps]))
        self._last, self.precedents = [work], []
        return LazyCopies(self._device, work)


class LazyCopies:
    """See `Copies`. The current stream is that of the steps."""

    def __init__(self, device: LazyDevice, work: Work) -> None:
        self._device, self.work = device, work

    def ready(self) -> bool:
        return self.work.done

    def wait(self) -> None:
        self._device.finish(self.work)

    def precede_launches(self) -> None:
        self._device.steps.precedents.append(self.work)

    def ms_since(self, earlier: Copies) -> float:
        return 1.0
