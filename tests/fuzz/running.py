"""What all fuzzers have in common: one table of targets each, and changes of something valid."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import atheris

Provider = Any
"""atheris' reader of an input."""
Targets = Mapping[str, Callable[[Provider], None]]


def fuzz(targets: Targets, *options: str) -> None:
    """Run libFuzzer on the targets; ``--target=NAME`` takes one of them alone."""
    asked = [word.removeprefix("--target=") for word in sys.argv if word.startswith("--target=")]
    chosen = [targets[name] for name in asked or targets]
    arguments = [word for word in sys.argv if not word.startswith("--target=")]

    def one_input(data: bytes) -> None:
        provider = atheris.FuzzedDataProvider(data)
        chosen[provider.ConsumeIntInRange(0, len(chosen) - 1)](provider)

    atheris.Setup([*arguments, *options], one_input)
    atheris.Fuzz()


def of_bytes(**readers: Callable[[bytes], None]) -> Targets:
    """Return targets that read what is left of an input."""

    def target(read: Callable[[bytes], None]) -> Callable[[Provider], None]:
        return lambda provider: read(provider.ConsumeBytes(provider.remaining_bytes()))

    return {name: target(read) for name, read in readers.items()}


def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that waits for nothing: a loop takes longer than most."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("expected a coroutine that waits for nothing")


def changed(valid: bytes, provider: Provider) -> bytes:
    """Change a few bytes of something valid, or cut it, or put bytes into it."""
    out = bytearray(valid)
    for _ in range(provider.ConsumeIntInRange(0, 4)):
        at = provider.ConsumeIntInRange(0, len(out))
        kind = provider.ConsumeIntInRange(0, 9)
        if kind == 0:
            del out[at:]
        elif kind == 1:
            out[at:at] = provider.ConsumeBytes(provider.ConsumeIntInRange(0, 9))
        elif kind == 2:
            del out[at : at + provider.ConsumeIntInRange(0, 9)]
        elif at < len(out):
            out[at] = provider.ConsumeIntInRange(0, 255)
    return bytes(out)


def odd_value(provider: Provider) -> Any:
    """Return a value that a document in JSON may have, mostly one that breaks something."""
    values: tuple[Any, ...] = (
        None, True, 0, -1, 1, 7, 255, 10**9, 2**31 - 1, 2**31, -(2**31) - 1, 2**63, 10**30, 0.5,
        -0.0, 1e308, float("nan"), float("inf"), "", "0", "-1", "1e9", "nan", "x" * 300,
        "\ud800", "[1]", [], [0], [[0]], [None], [1e308], {}, {"a": 1},
    )  # fmt: skip
    return values[provider.ConsumeIntInRange(0, len(values) - 1)]


def altered(document: Any, provider: Provider) -> Any:
    """Change a document of dicts, lists and values in one place."""
    if isinstance(document, dict) and document and provider.ConsumeIntInRange(0, 19):
        key = sorted(document)[provider.ConsumeIntInRange(0, len(document) - 1)]
        if not provider.ConsumeIntInRange(0, 14):
            return {k: v for k, v in document.items() if k != key}
        return {**document, key: altered(document[key], provider)}
    if isinstance(document, list) and document and provider.ConsumeIntInRange(0, 19):
        at = provider.ConsumeIntInRange(0, len(document) - 1)
        kind = provider.ConsumeIntInRange(0, 14)
        if kind == 0:
            return document[:at]
        if kind == 1:
            return [*document, document[at]]
        return [*document[:at], altered(document[at], provider), *document[at + 1 :]]
    return odd_value(provider)
