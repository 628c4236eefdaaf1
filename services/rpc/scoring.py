"""Scores by gRPC, to callers of the own organisation: what is asked and answered, and the servicer.

Callers have certificates of the organisation's own CA, not of the federation's, and are named by
the common name in them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import grpc
import numpy as np
from google.protobuf.json_format import MessageToDict
from numpy.typing import NDArray

from hedgerow.api.serving.v1 import scoring_service_pb2 as pb
from hedgerow.api.serving.v1 import scoring_service_pb2_grpc as pb_grpc
from hedgerow.boosting.errors import OfferRejected, Unauthorised
from hedgerow.services.identity.certificates import read, read_key
from hedgerow.services.process.trail import NOWHERE, Trail
from hedgerow.services.rpc.doorman import ConnectionLimiter, raise_descriptor_limit
from hedgerow.services.rpc.errors import aborting
from hedgerow.services.rpc.metering import MeteringInterceptor, Metrics
from hedgerow.services.rpc.server import OPTIONS

Floats = NDArray[np.float64]
STRANGER_SECONDS = 60.0
"""How long a connection without a call is held."""
STOP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class RowToScore:
    """A row to score: an identifier, features that the caller brings, or both."""

    id: str = ""
    features: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """Predictions of rows."""

    values: Floats
    """Of shape (n_rows,) or (n_rows, n_classes), float64."""
    errors: Mapping[int, str]
    """Why a row has none, by its position."""
    fallback: bool = False
    """Whether the active party's own trees alone have scored."""
    unknown: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Features of a row, by its position, whose text no silo had in training: it is missing."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Contributions to the margins of rows."""

    names: tuple[str, ...]
    """Features, ``PARTY:NUMBER`` for another party's; or parties."""
    values: Floats
    """Of shape (n_rows, n_outputs, n_names + 1), float64. The bias last."""
    errors: Mapping[int, str]


class ScoringBackend(Protocol):
    """What the servicer needs of the server."""

    async def predict(
        self, caller: str, name: str, rows: Sequence[RowToScore]
    ) -> tuple[str, Scores]:
        """Return the digest of a model, and scores."""

    async def explain(
        self, caller: str, name: str, rows: Sequence[RowToScore], *, totals: bool
    ) -> tuple[str, Explanation]:
        """Return the digest of a model, and contributions."""

    def classes(self, caller: str, name: str) -> tuple[str, ...]:
        """Return the names of a model's classes."""


class ScoringServicer(pb_grpc.ScoringServiceServicer):
    """Server side of ScoringService.

    Parameters
    ----------
    loopback : str
        Name of callers without certificates; empty where each has one.
    """

    def __init__(self, scoring: ScoringBackend, loopback: str) -> None:
        self._scoring, self._loopback = scoring, loopback
        self.doorman: ConnectionLimiter | None = None

    @aborting
    async def Predict(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        caller, rows = self._caller(context), _rows(request.rows)
        digest, found = await self._scoring.predict(caller, request.model, rows)
        values = found.values.reshape(len(rows), -1).tolist()
        return pb.PredictResponse(
            digest=digest,
            scores=[
                pb.RowScore(error=found.errors[k])
                if k in found.errors
                else pb.RowScore(values=own, unknown_categories=found.unknown.get(k, ()))
                for k, own in enumerate(values)
            ],
            classes=self._scoring.classes(caller, request.model),
            fallback=found.fallback,
        )

    @aborting
    async def Explain(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        caller, rows = self._caller(context), _rows(request.rows)
        digest, found = await self._scoring.explain(
            caller, request.model, rows, totals=request.by_party
        )
        return pb.ExplainResponse(
            digest=digest,
            names=found.names,
            rows=[
                pb.RowContributions(error=found.errors[k])
                if k in found.errors
                else pb.RowContributions(outputs=[pb.Contributions(values=one) for one in own])
                for k, own in enumerate(found.values.tolist())
            ],
        )

    def _caller(self, context: Any) -> str:
        """Return who calls; raises Unauthorised where that is not clear."""
        name = self._loopback or self._certified(context)
        if self.doorman is not None:
            self.doorman.know(context.peer(), name)
        return name

    def _certified(self, context: Any) -> str:
        shown = context.auth_context()
        if shown.get("ssl_tls_version", [b"TLSv1.3"])[0] != b"TLSv1.3":
            raise Unauthorised("TLS 1.3 is required")
        names = shown.get("x509_common_name", ())
        if len(names) != 1:
            raise Unauthorised("the caller's certificate has not one common name")
        return str(names[0].decode(errors="replace"))


def _rows(given: Sequence[Any]) -> list[RowToScore]:
    rows = []
    for k, row in enumerate(given):
        features = MessageToDict(row.features) if row.HasField("features") else None
        for name, value in (features or {}).items():
            if isinstance(value, dict | list):
                raise OfferRejected(f"rows[{k}].{name}: expected a number, a text or null")
        rows.append(RowToScore(row.id, features or None))
    return rows


async def serve_scores(
    listen: str,
    tls: Path | None,
    scoring: ScoringBackend,
    loopback: str,
    metrics: Metrics,
    trail: Trail = NOWHERE,
) -> tuple[Callable[[], Awaitable[None]], int]:
    """Start a server; return a function that stops it, and its port.

    Parameters
    ----------
    tls : Path or None
        Folder with tls.key, tls.crt and ca.crt, the CA of callers; without it nothing is
        encrypted, so that ``listen`` should be on loopback.
    loopback : str
        Name of callers where there is no ``tls``.

    Raises
    ------
    OSError
        The address cannot be bound.
    """
    raise_descriptor_limit()
    server = grpc.aio.server(
        interceptors=[MeteringInterceptor(metrics, trail=trail)], options=OPTIONS
    )
    servicer = ScoringServicer(scoring, "" if tls else loopback)
    pb_grpc.add_ScoringServiceServicer_to_server(servicer, server)
    metrics.expect_calls([pb.DESCRIPTOR.services_by_name["ScoringService"].full_name])
    try:
        if tls is None:
            port = server.add_insecure_port(listen)
        else:
            pair = (read_key(tls / "tls.key"), read(tls / "tls.crt"))
            credentials = grpc.ssl_server_credentials(
                [pair], read(tls / "ca.crt"), require_client_auth=True
            )
            port = server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {listen}: is another process there?") from error
    await server.start()
    servicer.doorman = doorman = ConnectionLimiter(port, stranger_seconds=STRANGER_SECONDS).start()

    async def stop() -> None:
        doorman.stop()
        await server.stop(STOP_SECONDS)

    return stop, port
