"""How calls to the crypto process are admitted, run and refused; both sides.

A call that carries arrays is admitted before its stream is read, as many at a time as there are
workers: what is not admitted yet waits unread, and HTTP/2's flow control holds the sender. So what
the process keeps in memory is bounded by its admitted calls. The vault's work runs in a pool of
threads; kernels let each other run, so that all cores work.

What the vault refuses reaches the caller as the exception that the vault raised. Anything else that
goes wrong is reported by its type only, for a message could hold what must not leave.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import structlog

from hedgerow.boosting.errors import FederationError, OfferRejected, Unauthorised
from hedgerow.boosting.exchange import Silo
from hedgerow.crypto import errors as refusals
from hedgerow.crypto.errors import InputRefused, Refusal
from hedgerow.crypto.masking.fixed_point import OutOfRange
from hedgerow.services.identity.certificates import Role
from hedgerow.services.identity.peers import peer_of
from hedgerow.services.process.logs import where
from hedgerow.services.rpc.errors import ErrorRow, ErrorTable, abort, from_rpc
from hedgerow.services.rpc.metering import Metrics

log = structlog.get_logger()

_R = TypeVar("_R")
_INPUT, _STATE = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION

REFUSALS: ErrorTable[Refusal] = ErrorTable(
    ErrorRow(refusals.VaultRefused, _STATE, "VAULT_REFUSED"),
    ErrorRow(refusals.NothingHeld, _STATE, "NOTHING_HELD"),
    ErrorRow(refusals.KeyRejected, _INPUT, "KEY_REJECTED"),
    ErrorRow(refusals.BoxInvalid, _INPUT, "BOX_INVALID"),
    ErrorRow(refusals.CiphertextRejected, _INPUT, "CIPHERTEXT_REJECTED"),
    ErrorRow(refusals.PlaintextOutOfRange, _INPUT, "PLAINTEXT_OUT_OF_RANGE"),
    ErrorRow(refusals.RangeRefused, _INPUT, "RANGE_REFUSED"),
    ErrorRow(refusals.HistogramRefused, _INPUT, "HISTOGRAM_REFUSED"),
    ErrorRow(refusals.PackingRefused, _INPUT, "PACKING_REFUSED"),
    ErrorRow(refusals.PsiRefused, _INPUT, "PSI_REFUSED"),
    ErrorRow(refusals.InvalidPoint, _INPUT, "INVALID_POINT"),
    ErrorRow(OutOfRange, _INPUT, "OUT_OF_RANGE"),
    ErrorRow(InputRefused, _INPUT, "INPUT_REFUSED"),
    ErrorRow(Refusal, _STATE, "REFUSED"),
)
"""What a vault refuses, as statuses."""


class CallLimits:
    """Lets the silo's own agent in, and runs what it asks for.

    Parameters
    ----------
    metrics : Metrics
        Gets ``hedgerow_crypto_calls`` by state: waiting (not read yet) and open.
    workers : int
        Calls that are worked on at a time.
    """

    def __init__(self, silo: str, metrics: Metrics, workers: int) -> None:
        self._silo = Silo(silo)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="vault")
        self._places = asyncio.Semaphore(workers)
        self._waiting = metrics.crypto_calls.labels("waiting")
        self._open = metrics.crypto_calls.labels("open")

    @asynccontextmanager
    async def small_call(self, context: Any) -> AsyncIterator[None]:
        """Serve a call whose request is one message; map what goes wrong within."""
        try:
            caller = peer_of(context).require(Role.SILO)
            if caller != self._silo:
                raise Unauthorised(f"this crypto process serves {self._silo}, not {caller}")
            yield
        except FederationError as error:
            await abort(context, error)
        except Refusal as error:
            await REFUSALS.abort(context, error)
        except ValueError as error:
            log.warning("a call was refused", kind=type(error).__name__, where=where(error))
            await abort(context, OfferRejected(f"the request is unusable: {type(error).__name__}"))
        except (grpc.RpcError, grpc.aio.AbortError):
            raise
        except Exception as error:
            said = type(error).__name__
            if isinstance(error, OSError) and error.strerror:
                said = error.strerror
            log.error("a call failed", kind=type(error).__name__, said=said, where=where(error))
            await context.abort(grpc.StatusCode.INTERNAL, f"the crypto process failed: {said}")

    @asynccontextmanager
    async def large_call(self, context: Any) -> AsyncIterator[None]:
        """Serve a call whose request is a stream, once there is a place for it."""
        async with self.small_call(context):
            with self._waiting.track_inprogress():
                await self._places.acquire()
            try:
                with self._open.track_inprogress():
                    yield
            finally:
                self._places.release()

    async def run(self, work: Callable[[], _R]) -> _R:
        """Run blocking work in the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def refused(error: grpc.RpcError, address: str) -> Exception:
    """Return the exception of a failed call of the vault."""
    known = REFUSALS.error(error)
    if known is not None:
        return known
    mapped = from_rpc(error, address)
    return InputRefused(str(mapped)) if isinstance(mapped, OfferRejected) else mapped
