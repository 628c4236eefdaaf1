"""Texts that others wrote, as terminals, logs and pages may show them."""

from __future__ import annotations


def visible(text: str, keep: str = "\n\t") -> str:
    """Return a text whose control characters, but ``keep``, are spelled out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """Return a text in which nothing begins a line, moves a cursor or turns letters around."""
    return visible(text, keep="")
