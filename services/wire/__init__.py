"""Payloads as protobuf frames: one module a noun, both directions of a type adjacent.

A codec turns a payload into the frames of one field of the ``frame`` oneof of the exchange
messages, and back. ``decode`` validates everything that a hostile peer could have written and
raises :class:`~boosting.ports.OfferRejected` with what was expected and what came.

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

from boosting.ports import Receipt
from services.wire.bulk import Part

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
    # payload type -> module of services.wire that holds its codec in CODECS
    "boosting.strategies.dp_tree.Growth": "services.wire.noisy_tree",
    "boosting.strategies.fedga_steps.Comparison": "services.wire.structures",
    "boosting.strategies.fedga_steps.DepthVote": "services.wire.structures",
    "boosting.strategies.fedga_steps.Proposal": "services.wire.structures",
    "boosting.strategies.fedga_steps.Scores": "services.wire.structures",
    "boosting.strategies.fedga_steps.Standing": "services.wire.structures",
    "boosting.parcels.Parcels": "services.wire.parcels",
    "boosting.tensors.Tensors": "services.wire.tensors",
    "boosting.sum_exchanges.KeyOffer": "services.wire.masking",
    "boosting.sum_exchanges.KeyRoster": "services.wire.masking",
    "boosting.sum_exchanges.MaskedVector": "services.wire.masking",
    "boosting.sum_exchanges.PairSeeds": "services.wire.masking",
    "boosting.sum_exchanges.PlainVector": "services.wire.masking",
    "boosting.sum_exchanges.PresentSet": "services.wire.masking",
    "boosting.sum_exchanges.SealedShares": "services.wire.masking",
    "boosting.sum_exchanges.SetSignature": "services.wire.masking",
    "boosting.sum_exchanges.Total": "services.wire.masking",
    "boosting.sum_exchanges.Unmasking": "services.wire.masking",
    "boosting.tree_exchanges.CatchUp": "services.wire.trees",
    "boosting.tree_exchanges.ScoreSums": "services.wire.scores",
    "boosting.tree_exchanges.Standing": "services.wire.trees",
    "boosting.tree_exchanges.TreeOffer": "services.wire.trees",
    "boosting.tree_exchanges.Verdict": "services.wire.scores",
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
