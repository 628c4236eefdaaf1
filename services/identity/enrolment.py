"""Inviting a member by a token: what a token says, and what an open invitation answers.

The first to use the token becomes the member, so it is sent where no one else reads it. It names
the inviting server by the SHA-256 of a certificate that was made for this invitation alone.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.serialization import Encoding

from hedgerow.boosting.errors import FederationError, Unauthorised
from hedgerow.services.identity.certificates import (
    IdentityUnusable,
    Role,
    Subject,
    check_name,
    parse,
)

SECRET_BYTES = 32
MAX_REFUSED = 10
"""Tries that are refused before an invitation ends."""
ADDRESS = re.compile(r"[A-Za-z0-9*._:\[\]%-]{1,262}")
_SCHEME = "hedgerow-join"
_TOKEN = re.compile(
    rf"{_SCHEME}://([^/]+)/([^/]+)/([^/]+)/([^/]+)/([A-Za-z0-9_-]{{43}})/([A-Za-z0-9_-]{{43}})"
)


@dataclass(frozen=True, slots=True)
class SignedPlace:
    """A certificate and the folder of its key."""

    place: str
    certificate: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """What the owner of the CA sends back: no secrets, and all that the folder lacks."""

    federation: str
    name: str
    ca: str
    coordinator: str
    signed: list[SignedPlace]


@dataclass(frozen=True, slots=True)
class Token:
    """What a member needs to enrol."""

    address: str
    """``HOST:PORT`` of the inviting server."""
    member: Subject
    """Who is invited."""
    fingerprint: bytes
    """SHA-256 of the server's certificate, DER."""
    secret: bytes = field(repr=False)
    """:data:`SECRET_BYTES` random bytes."""

    @classmethod
    def read(cls, text: str) -> Token:
        """Return the token of :meth:`write`.

        Raises
        ------
        IdentityUnusable
            It is none; the text is not repeated.
        """
        match = _TOKEN.fullmatch(text.strip())
        if match is None or not ADDRESS.fullmatch(match[1]):
            raise IdentityUnusable(
                f"expected a token as `hedgerow pki invite` prints it, {_SCHEME}://..., whole; "
                f"received {len(text.strip())} characters that are none"
            )
        check_name("federation", match[2])
        check_name("name", match[4])
        if match[3] not in (Role.SILO, Role.OPERATOR, Role.VIEWER):
            raise IdentityUnusable("the token invites neither a silo nor an operator nor a viewer")
        member = Subject(match[2], Role(match[3]), match[4])
        fingerprint, secret = (base64.urlsafe_b64decode(match[k] + "=") for k in (5, 6))
        return cls(match[1], member, fingerprint, secret)

    def write(self) -> str:
        """Return the token as text, without blanks."""
        member, digits = self.member, (self.fingerprint, self.secret)
        ending = "/".join(base64.urlsafe_b64encode(one).decode().rstrip("=") for one in digits)
        path = f"{self.address}/{member.federation}/{member.role}/{member.name}/{ending}"
        return f"{_SCHEME}://{path}"


def fingerprint_of(certificate: bytes) -> bytes:
    """Return the SHA-256 of a certificate (PEM)."""
    return hashlib.sha256(parse(certificate, "it")[0].public_bytes(Encoding.DER)).digest()


class Invitation:
    """One enrolment that is open until it is complete, has expired, or was tried too often.

    Its methods neither wait nor run beside each other: of two joiners one is first.

    Parameters
    ----------
    sign : callable
        Certificate requests by folder to the bundle; raises IdentityUnusable.
    expires : float
        Seconds since 1970.
    note : callable
        Called with each event, in words, for the person who invites.
    record : callable
        Called with (action, caller, whether it was let) of each, for the audit trail.
    """

    def __init__(
        self,
        member: Subject,
        sign: Callable[[Mapping[str, str]], Bundle],
        expires: float,
        clock: Callable[[], float],
        note: Callable[[str], None],
        record: Callable[[str, str, bool], None] = lambda action, caller, let: None,
    ) -> None:
        self._record = record
        self.member, self.secret = member, secrets.token_bytes(SECRET_BYTES)
        self._who = f"{member.role}/{member.name}"
        self._sign, self._expires, self._clock, self._note = sign, expires, clock, note
        self._answered: tuple[dict[str, str], Bundle] | None = None
        self.refused = 0
        self.complete = False

    @property
    def ended(self) -> bool:
        """Whether nothing is answered any more."""
        return self.complete or self.refused >= MAX_REFUSED or self._clock() >= self._expires

    @property
    def signed(self) -> bool:
        """Whether certificates have been issued."""
        return self._answered is not None

    def enrol(self, caller: str, secret: bytes, requests: Mapping[str, str]) -> Bundle:
        """Return the bundle that the requests are answered with.

        Raises
        ------
        Unauthorised
        IdentityUnusable
            A request cannot be signed; or others than these have been.
        """
        self._admit(caller, secret)
        if self._answered is None:
            try:
                bundle = self._sign(requests)
            except FederationError as error:
                self._refuse(caller, str(error))
                raise
            self._answered = (dict(requests), bundle)
            self._note(f"{caller}: signed the requests of {self._who}")
        elif dict(requests) != self._answered[0]:
            self._refuse(
                caller,
                "has the token too, after another's requests were signed with it: if those were "
                f"not of {self.member.name}, revoke what was signed",
            )
            raise IdentityUnusable(
                "somebody else has used this token: tell the owner of the CA, who revokes what "
                "was signed and invites again"
            )
        return self._answered[1]

    def finish(self, caller: str, secret: bytes) -> None:
        """Note that the member has the bundle in its place.

        Raises
        ------
        Unauthorised, IdentityUnusable
        """
        self._admit(caller, secret)
        if self._answered is None:
            self._refuse(caller, "nothing was signed yet")
            raise IdentityUnusable("nothing was signed yet")
        self.complete = True
        self._record("invitation-complete", caller, True)
        self._note(f"{caller}: {self._who} is complete")

    def _admit(self, caller: str, secret: bytes) -> None:
        if not hmac.compare_digest(secret, self.secret):
            self._refuse(caller, "wrong secret")
            raise Unauthorised("the token's secret is not that of this invitation")
        if self.ended:
            raise Unauthorised("the invitation has ended: ask for another")

    def _refuse(self, caller: str, why: str) -> None:
        self.refused += 1
        self._record("invitation-refused", caller, False)
        # What a caller wrote may be in it, which a terminal would obey.
        self._note(f"{caller}: refused ({self.refused} of {MAX_REFUSED}): {ascii(why)[1:-1]}")
