"""Payloads as protobuf frames: one module a noun, both directions of a type adjacent.

A codec turns a payload into the frames of one field of the ``frame`` oneof of the exchange
messages, and back. ``decode`` validates everything that a hostile peer could have written and
raises :class:`~hedgerow.boosting.errors.OfferRejected` with what was expected and what came.

To add a payload: define its frozen dataclass in ``boosting``, its noun in ``proto``, its field
in the RPC's request and response, its :class:`Codec` in a module here, and its line in
``_MODULES``. Modules are imported when their payload is first met, so that a process loads only
what its strategy needs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hedgerow.boosting.exchange import Receipt
from hedgerow.services.wire.bulk import Part

Payload = TypeVar("Payload")


@dataclass(frozen=True, slots=True)
class Codec(Generic[Payload]):
    """How one payload type travels.

    Parameters
    ----------
    payload : type
    frame : str
        Field of the ``frame`` oneof that its messages occupy.
    encode : callable
        Payload to its messages, each at most about 1 MiB serialised.
    decode : callable
        Messages, in order, to the payload.
    """

    payload: type[Payload]
    frame: str
    encode: Callable[[Payload], Iterator[Part]]
    decode: Callable[[Iterable[Any]], Payload]


def _no_frames(payload: Receipt) -> Iterator[Part]:
    return iter(())


def _receipt(messages: Iterable[Any]) -> Receipt:
    for _ in messages:
        pass
    return Receipt()


RECEIPT = Codec(Receipt, "", _no_frames, _receipt)

_MODULES: dict[str, str] = {
    # payload type -> module of hedgerow.services.wire that holds its codec in CODECS
    "hedgerow.boosting.strategies.dp_tree.parameters.Growth": "hedgerow.services.wire.noisy_tree",
    "hedgerow.boosting.strategies.fedga.steps.Comparison": "hedgerow.services.wire.structures",
    "hedgerow.boosting.strategies.fedga.steps.DepthVote": "hedgerow.services.wire.structures",
    "hedgerow.boosting.strategies.fedga.steps.Proposal": "hedgerow.services.wire.structures",
    "hedgerow.boosting.strategies.fedga.steps.Scores": "hedgerow.services.wire.structures",
    "hedgerow.boosting.strategies.fedga.steps.Standing": "hedgerow.services.wire.structures",
    "hedgerow.boosting.strategies.secureboost.parcels.Parcels": "hedgerow.services.wire.parcels",
    "hedgerow.boosting.tensors.Tensors": "hedgerow.services.wire.tensors",
    "hedgerow.boosting.sums.steps.KeyOffer": "hedgerow.services.wire.masking",
    "hedgerow.boosting.sums.steps.KeyRoster": "hedgerow.services.wire.masking",
    "hedgerow.boosting.sums.steps.MaskedVector": "hedgerow.services.wire.masking",
    "hedgerow.boosting.sums.steps.PairSeeds": "hedgerow.services.wire.masking",
    "hedgerow.boosting.sums.steps.PlainVector": "hedgerow.services.wire.masking",
    "hedgerow.boosting.sums.steps.PresentSet": "hedgerow.services.wire.masking",
    "hedgerow.boosting.sums.steps.SealedShares": "hedgerow.services.wire.masking",
    "hedgerow.boosting.sums.steps.SetSignature": "hedgerow.services.wire.masking",
    "hedgerow.boosting.sums.steps.Total": "hedgerow.services.wire.masking",
    "hedgerow.boosting.sums.steps.Unmasking": "hedgerow.services.wire.masking",
    "hedgerow.boosting.strategies.bagging.steps.CatchUp": "hedgerow.services.wire.trees",
    "hedgerow.boosting.strategies.bagging.steps.ScoreSums": "hedgerow.services.wire.scores",
    "hedgerow.boosting.strategies.bagging.steps.Standing": "hedgerow.services.wire.trees",
    "hedgerow.boosting.strategies.bagging.steps.TreeOffer": "hedgerow.services.wire.trees",
    "hedgerow.boosting.strategies.bagging.steps.Verdict": "hedgerow.services.wire.scores",
}
"""Where each payload's codec is; keys are ``module.TypeName``."""


_KNOWN: dict[type[Any], Codec[Any]] = {Receipt: RECEIPT}


def codec_of(payload: type[Payload]) -> Codec[Payload]:
    """Return the codec of a payload type; an unknown type is a programming error."""
    found: Codec[Payload] | None = _KNOWN.get(payload)
    if found is None:
        found = _KNOWN[payload] = _load(payload)
    return found


def _load(payload: type[Any]) -> Codec[Any]:
    module = importlib.import_module(_MODULES[f"{payload.__module__}.{payload.__qualname__}"])
    for codec in module.CODECS:
        if codec.payload is payload:
            known: Codec[Any] = codec
            return known
    raise KeyError(f"no codec of {payload.__qualname__} in {module.__name__}")
