"""A silo's offer as it arrived at the barrier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Call, Step

T = TypeVar("T")

LARGE_BYTES = 1 << 12
"""Offers of more bytes on the wire are decoded off the loop: they may unfold to far more."""


class ArrivedOffer(Generic[T]):
    """An offer as it arrived: its kind, and how to decode it once its step is known."""

    __slots__ = ("_payload", "call", "decode", "large", "remote")

    def __init__(
        self,
        call: Call,
        decode: Callable[[type[T]], T],
        *,
        remote: bool = False,
        n_bytes: int = 0,
    ) -> None:
        self.call = call
        self.remote = remote
        self.large = n_bytes > LARGE_BYTES
        self.decode = decode
        self._payload: T | None = None

    def open(self, step: Step[T, Any]) -> T:
        """Decode the payload, once; what does not fit the step is an :class:`OfferRejected`."""
        if self._payload is None:
            if self.call is not step.call:
                raise OfferRejected(
                    f"step {step.name!r} travels by {step.call.value}, "
                    f"received the offer by {self.call.value}"
                )
            self._payload = self.decode(step.offer)
            self.decode = _spent
        return self._payload


def _spent(payload: type[Any]) -> Any:
    raise AssertionError("a parcel is decoded once")
