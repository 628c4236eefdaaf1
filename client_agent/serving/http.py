"""Scores by JSON over HTTP: a Starlette application, and uvicorn that says who calls."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hedgerow.boosting.errors import (
    DataError,
    FederationError,
    LimitReached,
    OfferRejected,
    PolicyDeclined,
    SchemaMismatch,
    Unauthorised,
    Unreachable,
)
from hedgerow.client_agent.serving.config import LOOPBACK
from hedgerow.client_agent.serving.scoring import Scoring
from hedgerow.services.process.trail import NOWHERE, Actor, Trail
from hedgerow.services.rpc.errors import NotFound
from hedgerow.services.rpc.http import ADMIT, CALLER, HttpServer
from hedgerow.services.rpc.scoring import RowToScore

MOST_BYTES = 16 << 20
"""Longest body of a request."""
_CODES: tuple[tuple[type[FederationError], int], ...] = (
    (NotFound, 404),
    (Unauthorised, 403),
    (LimitReached, 429),
    (Unreachable, 503),
    (PolicyDeclined, 502),
    (OfferRejected, 400),
    (DataError, 400),
    (SchemaMismatch, 400),
)


def application(scoring: Scoring, trail: Trail = NOWHERE) -> Starlette:
    """Return the application.

    ``POST /v1/models/NAME:predict`` and ``:explain``, ``GET /v1/models/NAME``, ``/healthz``,
    ``/readyz``.
    """

    async def call(request: Request) -> Response:
        name, _, verb = request.path_params["name"].rpartition(":")
        caller = _caller(request)
        if verb not in ("predict", "explain"):
            raise NotFound(f"{verb!r} is none of predict, explain")
        scoring.model(caller, name)  # a stranger's body is not read
        document = await _document(request)
        rows = _rows(document.pop("instances", None))
        if verb == "predict":
            _nothing_else(document)
            digest, scores = await scoring.predict(caller, name, rows)
            answer: dict[str, Any] = {
                "predictions": _numbers(scores.values, scores.errors),
                "digest": digest,
            }
            if classes := scoring.classes(caller, name):
                answer["classes"] = list(classes)
            if scores.fallback:
                answer["fallback"] = True
            if scores.unknown:
                told = sorted(scores.unknown.items())
                answer["unknown_categories"] = {str(k): list(names) for k, names in told}
            errors = scores.errors
        else:
            totals = document.pop("by_party", False)
            _nothing_else(document)
            if not isinstance(totals, bool):
                raise OfferRejected("by_party: expected true or false")
            digest, found = await scoring.explain(caller, name, rows, totals=totals)
            answer = {
                "names": [*found.names, "bias"],
                "contributions": _numbers(found.values, found.errors),
                "digest": digest,
            }
            errors = found.errors
        if errors:
            answer["errors"] = {str(k): why for k, why in sorted(errors.items())}
        return JSONResponse(answer)

    async def about(request: Request) -> Response:
        model = scoring.model(_caller(request), request.path_params["name"])
        drift = getattr(model, "drift", None)
        return JSONResponse(
            {"name": model.name, "digest": model.digest, "ready": not model.away,
             "away": list(model.away), "classes": list(model.classes),
             "inputs": [{"name": name, "type": "text" if text else "number"}
                        for name, text in model.inputs.items()],
             **({} if drift is None else {"drifted": list(drift.drifted)})}
        )  # fmt: skip

    async def alive(request: Request) -> Response:
        return JSONResponse({"alive": True})

    async def ready(request: Request) -> Response:
        waiting = {name: list(away) for name, away in scoring.waiting.items()}
        return JSONResponse({"ready": not waiting, "away": waiting}, 503 if waiting else 200)

    async def failed(request: Request, error: FederationError) -> Response:
        response = await _failed(request, error)
        if response.status_code in (403, 429):
            client = request.client.host if request.client else ""
            caller = Actor(str(request.scope.get(CALLER, LOOPBACK)), "caller", client)
            about = {
                "error.code": type(error).__name__,
                "hedgerow.model": str(request.path_params.get("name", "")).partition(":")[0],
            }
            trail.enqueue_limited("call-refused", caller, "failure", about)
        return response

    return Starlette(
        routes=[
            Route("/v1/models/{name}", call, methods=["POST"]),
            Route("/v1/models/{name}", about),
            Route("/healthz", alive),
            Route("/readyz", ready),
        ],
        exception_handlers={FederationError: failed},  # type: ignore[dict-item]
    )


async def _failed(request: Request, error: FederationError) -> Response:
    code = next((code for kind, code in _CODES if isinstance(error, kind)), 500)
    headers = {"Retry-After": error.facts.get("seconds", "1")} if code in (429, 503) else None
    return JSONResponse({"error": str(error)}, code, headers)


def _caller(request: Request) -> str:
    """Return who calls; raises Unauthorised for a page in a browser, which reaches loopback."""
    caller = str(request.scope.get(CALLER, LOOPBACK))
    if caller == LOOPBACK and "origin" in request.headers:
        raise Unauthorised("pages in a browser are not answered on loopback")
    if caller == LOOPBACK:
        request.scope[ADMIT](LOOPBACK)
    return caller


async def _document(request: Request) -> dict[str, Any]:
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BYTES:
                raise OfferRejected(f"the body has over {MOST_BYTES} bytes")
    except ClientDisconnect:
        raise OfferRejected("the body has not ended") from None
    try:
        found = json.loads(body.decode())
        if b"\\u" in body:
            json.dumps(found, ensure_ascii=False).encode()  # half a character is no text
    except (ValueError, RecursionError):
        raise OfferRejected("the body is no JSON") from None
    if not isinstance(found, dict):
        raise OfferRejected('expected an object with "instances"')
    return found


def _nothing_else(document: dict[str, Any]) -> None:
    if document:
        raise OfferRejected(f"unknown key {next(iter(document))!r}")


def _rows(instances: object) -> list[RowToScore]:
    """Return rows: identifiers, or objects of features with or without ``_id``."""
    if not isinstance(instances, list):
        raise OfferRejected('expected "instances" to be a list of rows')
    return [_row(k, given) for k, given in enumerate(instances)]


def _row(k: int, given: object) -> RowToScore:
    if isinstance(given, str):
        return RowToScore(given)
    if isinstance(given, int) and not isinstance(given, bool):
        return RowToScore(str(given))
    if not isinstance(given, dict):
        raise OfferRejected(f"instances[{k}]: expected an identifier, or an object of features")
    features = {name: value for name, value in given.items() if name != "_id"}
    for name, value in features.items():
        if not isinstance(value, str | int | float | bool | None):
            raise OfferRejected(f"instances[{k}].{name}: expected a number, a text or null")
    own = given.get("_id", "")
    if isinstance(own, bool) or not isinstance(own, str | int):
        raise OfferRejected(f"instances[{k}]._id: expected a text or a whole number")
    return RowToScore(str(own), features or None)


def _numbers(values: Any, errors: Any) -> list[Any]:
    """Return rows as lists of numbers, null where there is an error."""
    found = values.tolist()
    for k in errors:
        found[k] = None
    return [row if row is None or not _broken(row) else None for row in found]


def _broken(row: Any) -> bool:
    return isinstance(row, float) and not math.isfinite(row)


class ScoringServer(HttpServer):
    """A server within a running loop, which leaves the process' signals alone."""

    def __init__(self, scoring: Scoring, tls: Path | None, trail: Trail = NOWHERE) -> None:
        super().__init__(
            application(scoring, trail), tls, log_config=None, timeout_graceful_shutdown=5
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield
