"""Logs as key-value events: JSON in containers, plain lines on a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import structlog

from hedgerow.services.process import settings
from hedgerow.services.process.terminal import ends_as, wants_json
from hedgerow.services.process.texts import one_line


class _LastingStderr:
    """What standard error is at each line; its full disk or closed pipe stops no process."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


class _Level:
    """The least level that is logged: SIGUSR1 changes between the settings' one and debug."""

    def __init__(self, name: str) -> None:
        self._set = self._least = logging.getLevelNamesMapping()[name.upper()]

    def __call__(
        self, logger: object, name: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        if structlog.processors.NAME_TO_LEVEL[name] < self._least:
            raise structlog.DropEvent
        return event

    def changed(self, number: int, frame: FrameType | None) -> None:
        self._least = self._set if self._least == logging.DEBUG else logging.DEBUG
        said = {"least": logging.getLevelName(self._least).lower()}
        # The signal may have come while this thread writes a line.
        threading.Thread(
            target=structlog.get_logger().warning, args=("log level",), kwargs=said
        ).start()


REPEAT_SECONDS = 60.0
"""How long the same is counted before it is said again."""
MOST_KINDS = 1024
"""Most kinds that are counted; the one that is longest ago is forgotten."""


class Repeats:
    """Counts what comes again and again, so that it fills no log."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[tuple[str, ...], tuple[float, int]] = {}

    def since(self, key: tuple[str, ...]) -> int | None:
        """Return how often it came since it was last said; None where that is too new."""
        now = self._clock()
        since, repeats = self._seen.pop(key, (-REPEAT_SECONDS, 0))
        if now - since < REPEAT_SECONDS:
            self._seen[key] = (since, repeats + 1)
            return None
        self._seen[key] = (now, 0)
        if len(self._seen) > MOST_KINDS:
            del self._seen[next(iter(self._seen))]
        return repeats


_ALWAYS: dict[str, str] = {}


def always(**fields: str) -> None:
    """Add fields to every line of this process from now on, as whose it is."""
    _ALWAYS.update(fields)


def _with_fields(
    logger: object, name: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    return {**_ALWAYS, **event}


def _in_one_line(
    logger: object, name: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Spell out what would forge a line of a log, or move a terminal's cursor."""
    return {k: one_line(v) if isinstance(v, str) else v for k, v in event.items()}


def configure(*, json: bool, level: str) -> None:
    """Set up structlog for this process; logs go to standard error.

    SIGUSR1 sets the level to debug, and the next one to what it was before.

    What threads, event loops and libraries report of themselves becomes one line too: their
    tracebacks help no operator, and an error's text may hold values.

    Parameters
    ----------
    json : bool
        One JSON object a line, else readable text.
    level : str
        ``debug``, ``info``, ``warning`` or ``error``.
    """
    least = _Level(level)
    if hasattr(signal, "SIGUSR1") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, least.changed)
    render: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    structlog.configure(
        processors=[
            least,
            _with_fields,
            structlog.contextvars.merge_contextvars,
            _in_one_line,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([structlog.processors.format_exc_info] if json else []),
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.PrintLoggerFactory(_LastingStderr()),  # type: ignore[arg-type]
        cache_logger_on_first_use=True,
    )
    threading.excepthook = _thread_ended
    if json:
        sys.excepthook = _process_ended
        ends_as(_ended)
    logging.basicConfig(handlers=[_LibraryHandler()], level=logging.WARNING, force=True)


def configured(kind: type[settings.Settings], path: Path) -> settings.Settings:
    """Return the settings of a process, whose log is as they say from now on.

    Raises
    ------
    SettingsInvalid
        By a line as the settings ask for, as far as they can be read.
    """
    try:
        loaded = settings.load(kind, path)
    except settings.SettingsInvalid:
        configure(json=settings.asks_for_json(kind, path) or wants_json(), level="info")
        raise
    configure(json=loaded.log_json or wants_json(), level=loaded.log_level)
    return loaded


class _LibraryHandler(logging.Handler):
    """Makes one line of what a library logs."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, asyncio.CancelledError):
            return  # of a call that ended with its server
        fields = {} if error is None else defect(error)
        log = structlog.get_logger()
        (log.error if record.levelno >= logging.ERROR else log.warning)(
            "library", source=record.name, message=record.msg, **fields
        )


def _thread_ended(given: threading.ExceptHookArgs) -> None:
    name = given.thread.name if given.thread is not None else ""
    if given.exc_value is not None:
        structlog.get_logger().error("thread ended", thread=name, **defect(given.exc_value))


def _ended(process: str, why: str) -> None:
    structlog.get_logger().critical("ended", process=process, why=why)


def _process_ended(
    kind: type[BaseException], error: BaseException, frames: TracebackType | None
) -> None:
    structlog.get_logger().critical("ended by a defect", **defect(error))


def stopped() -> asyncio.Event:
    """Return the event of a signal that ends the process, whose loop :func:`quiet` keeps short."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    quiet(loop)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def quiet(loop: asyncio.AbstractEventLoop) -> None:
    """Let an event loop report what nobody awaited in one line, and cancellations not at all."""

    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, asyncio.CancelledError):
            fields = {} if error is None else defect(error)
            structlog.get_logger().error("event loop", message=context["message"], **fields)

    loop.set_exception_handler(report)


def where(error: BaseException) -> list[str]:
    """Return the last places of an error's traceback, not its text, which may hold values."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename}:{frame.lineno}" for frame in frames[-4:]]


def defect(error: BaseException) -> dict[str, object]:
    """Return what a log may say of an unexpected error: its type and where it was raised."""
    return {"kind": type(error).__name__, "where": where(error)}
