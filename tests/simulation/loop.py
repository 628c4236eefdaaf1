"""An event loop of a simulated thread: where nothing is to be done it lets others run."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

from tests.simulation.scheduler import Thread, world


class _Selector(selectors.SelectSelector):
    """In place of the wait for sockets, of which there are none."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: Thread | None = None
        self.woken = False

    def select(self, timeout: float | None = None) -> list[Any]:
        here = world()
        if not self.woken and (timeout is None or timeout > 0):
            self.waiting = here.current
            here.park(timeout)
            self.waiting = None
        self.woken = False
        return []

    def wake(self) -> None:
        self.woken = True
        if self.waiting is not None:
            world().wake(self.waiting)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop without sockets."""

    def __init__(self) -> None:
        self._waits = _Selector()
        super().__init__(self._waits)

    def create_task(self, work: Any, *, name: Any = None, context: Any = None) -> Any:
        """Note a task of a name that ends by an error: it was to last as long as its process."""
        task = super().create_task(work, name=name, context=context)
        if name is not None:
            task.add_done_callback(_ended)
        return task

    def _make_self_pipe(self) -> None:
        self._ssock = self._csock = None  # type: ignore[assignment]

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        self._waits.wake()


def _ended(task: Any) -> None:
    if not task.cancelled() and task.exception() is not None:
        world().defects.append(f"the task {task.get_name()} ended: {task.exception()!r}")
