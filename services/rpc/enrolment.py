"""The enrolment service: TLS by a certificate that a token names; servicer and client."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import grpc

from hedgerow.api.federation.v1 import enrolment_service_pb2 as pb
from hedgerow.api.federation.v1 import enrolment_service_pb2_grpc as pb_grpc
from hedgerow.boosting.errors import FederationError, Unreachable
from hedgerow.services.identity.enrolment import (
    Bundle,
    Invitation,
    SignedPlace,
    Token,
    fingerprint_of,
)
from hedgerow.services.process.texts import parse_address
from hedgerow.services.rpc.channel import HANDSHAKE_SECONDS, dial
from hedgerow.services.rpc.doorman import ConnectionLimiter, raise_descriptor_limit
from hedgerow.services.rpc.errors import aborting, from_rpc
from hedgerow.services.rpc.metering import Metrics
from hedgerow.services.rpc.proxies import connected, operators_proxy
from hedgerow.services.rpc.server import OPTIONS

SERVER_NAME = "invitation.hedgerow"
"""Name in an inviting server's certificate, wherever it is dialled."""
CALL_SECONDS = 30.0
MOST_REQUEST_BYTES = 32 << 10
MOST_CALLS = 8
"""Calls that are served at a time."""
STOP_SECONDS = 2.0
"""How long the last answer has to leave."""


class EnrolmentServicer(pb_grpc.EnrolmentServiceServicer):
    """Server side of EnrolmentService.

    Parameters
    ----------
    ended : asyncio.Event
        Is set once the invitation answers nothing any more.
    """

    def __init__(self, invitation: Invitation, ended: asyncio.Event) -> None:
        self._invitation, self._ended = invitation, ended

    @aborting
    async def EnrolMember(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        with self._noting_end():
            bundle = self._invitation.enrol(_caller(context), request.secret, request.requests)
        return pb.EnrolMemberResponse(
            federation=bundle.federation,
            name=bundle.name,
            ca=bundle.ca,
            coordinator=bundle.coordinator,
            certificates={one.place: one.certificate for one in bundle.signed},
        )

    @aborting
    async def CompleteEnrolment(self, request: Any, context: Any) -> Any:  # noqa: D102, N802
        with self._noting_end():
            self._invitation.finish(_caller(context), request.secret)
        return pb.CompleteEnrolmentResponse()

    @contextlib.contextmanager
    def _noting_end(self) -> Iterator[None]:
        try:
            yield
        finally:
            if self._invitation.ended:
                self._ended.set()


def _caller(context: Any) -> str:
    return unquote(context.peer()).partition(":")[2]


async def serve_invitation(
    invitation: Invitation,
    listen: str,
    pair: tuple[bytes, bytes],
    seconds: float,
    opened: Callable[[int], None],
) -> None:
    """Serve an invitation until it has ended.

    Parameters
    ----------
    listen : str
        ``HOST:PORT``; port 0: a free one.
    pair : tuple of bytes
        Key and certificate of the server, PEM.
    opened : callable
        Called with the port.

    Raises
    ------
    OSError
        The address cannot be bound.
    """
    raise_descriptor_limit()
    limits = {"grpc.max_receive_message_length": MOST_REQUEST_BYTES}
    server = grpc.aio.server(
        options=tuple((dict(OPTIONS) | limits).items()), maximum_concurrent_rpcs=MOST_CALLS
    )
    ended = asyncio.Event()
    pb_grpc.add_EnrolmentServiceServicer_to_server(EnrolmentServicer(invitation, ended), server)
    try:
        port = server.add_secure_port(listen, grpc.ssl_server_credentials([pair]))
    except RuntimeError as error:
        raise OSError(
            f"cannot listen on {listen}: another process does, or the address is not this "
            "machine's; set --listen to another"
        ) from error
    doorman = ConnectionLimiter(port, stranger_seconds=CALL_SECONDS)
    try:
        await server.start()
        doorman.start()
        opened(port)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), seconds)
    finally:
        await server.stop(STOP_SECONDS)
        doorman.stop()


class EnrolmentClient:
    """Client side of EnrolmentService."""

    def __init__(self, token: Token, channel: grpc.Channel) -> None:
        self._token, self._stub = token, pb_grpc.EnrolmentServiceStub(channel)

    def enrol(self, requests: Mapping[str, str]) -> Bundle:
        """Return what certificate requests, by folder, are answered with; nothing is checked."""
        request = pb.EnrolMemberRequest(secret=self._token.secret, requests=requests)
        answer = self._call(self._stub.EnrolMember, request)
        signed = [SignedPlace(place, one) for place, one in sorted(answer.certificates.items())]
        return Bundle(answer.federation, answer.name, answer.ca, answer.coordinator, signed)

    def finish(self) -> None:
        """Say that the answer is in its place."""
        self._call(
            self._stub.CompleteEnrolment, pb.CompleteEnrolmentRequest(secret=self._token.secret)
        )

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            raise from_rpc(error, self._token.address) from None


@contextlib.contextmanager
def enrolment(token: Token) -> Iterator[EnrolmentClient]:
    """Connect to the server that a token names, and to no other.

    Raises
    ------
    Unreachable
        It is not there, or another one is: the secret does not leave then.
    """
    credentials = grpc.ssl_channel_credentials(_server_certificate(token))
    channel = dial(
        token.address, credentials, Metrics(), server_name=SERVER_NAME, proxy=operators_proxy()
    )
    with channel.raw as raw:
        yield EnrolmentClient(token, raw)


def _server_certificate(token: Token) -> bytes:
    """Return the server's certificate, PEM, for gRPC to trust alone: it has no other pinning."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    parse_address(token.address)
    try:
        with (
            connected(token.address, HANDSHAKE_SECONDS, operators_proxy()) as plain,
            context.wrap_socket(plain, server_hostname=SERVER_NAME) as secured,
        ):
            shown = secured.getpeercert(binary_form=True) or b""
    except OSError as error:
        raise Unreachable(
            f"{token.address}: no invitation is open there ({error.strerror or error}): it has "
            "expired, was used or interrupted, or a firewall is in between; if it was used and "
            "not by you, tell the owner of the CA"
        ) from error
    pem = ssl.DER_cert_to_PEM_cert(shown).encode()
    try:
        same = fingerprint_of(pem) == token.fingerprint
    except FederationError:
        same = False
    if not same:
        raise Unreachable(
            f"{token.address}: the server is not the one that the token names: its certificate "
            "has another SHA-256. The invitation has ended and another is open, or something in "
            "between intercepts TLS; nothing was sent to it"
        )
    return pem
