"""Logs as key-value events: JSON in containers, plain lines on a terminal."""

from __future__ import annotations

import logging
import sys
import traceback

import structlog


def configure(*, json: bool, level: str) -> None:
    """Set up structlog for this process; logs go to standard error.

    Parameters
    ----------
    json : bool
        One JSON object a line, else readable text.
    level : str
        ``debug``, ``info``, ``warning`` or ``error``.
    """
    render: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if json else _as_it_is,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def where(error: BaseException) -> list[str]:
    """Return the last places of an error's traceback, not its text, which may hold values."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename}:{frame.lineno}" for frame in frames[-4:]]


def defect(error: BaseException) -> dict[str, object]:
    """Return what a log may say of an unexpected error: its type and where it was raised."""
    return {"kind": type(error).__name__, "where": where(error)}


def _as_it_is(
    logger: object, name: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    return event
