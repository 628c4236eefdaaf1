"""Who may use the console, and what its pages may load.

A browser runs pages of strangers, and other users of a machine reach its loopback. So every request
must name a host that the console has (a stranger's name that resolves to loopback is refused), show
the secret of the address that was printed at the start, and a request that changes something must
come from the console's own page and repeat a token that only its pages have.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hedgerow.boosting.errors import FederationError, Unauthorised
from hedgerow.boosting.registry import Registry
from hedgerow.services.process.trail import NOWHERE, Actor, Trail
from hedgerow.services.rpc.http import ADMIT

MAX_FORM_BYTES = 2 << 20
PAGES = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
"""What the console's pages may load: its own files, no inline script, nothing from elsewhere."""
REPORT = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline' 'unsafe-eval'; img-src data:; frame-ancestors 'none'"
)
"""A report is one file with its scripts in it: it runs as nobody, without the console's cookie."""

USER = "hedgerow.user"
"""Where a request's scope has who signed in."""


@dataclass(frozen=True, slots=True)
class Authenticator:
    """Reads who signed in from a request that a sign-on passes on."""

    users: Callable[[Headers, str], Sequence[str]]
    """Returns the names that headers show, of which one is accepted, given the headers and
    ``--user-header``; raises Unauthorised for what shows a false one."""
    where: str
    """Where the name is, for messages."""
    has_password: bool = True
    """Whether each request has the password of ``--sign-on``, too."""


AUTHENTICATORS = Registry(
    "hedgerow.authenticators",
    "authenticator",
    {
        "basic": Authenticator(lambda headers, _: _basic(headers)[:1], "the basic authentication"),
        "header": Authenticator(lambda headers, name: headers.getlist(name), "the header"),
    },
)
"""By the name that ``--user-by`` takes."""


@dataclass(frozen=True, slots=True)
class SignOn:
    """A proxy that signs people in, and shows the secret with each request."""

    by: Authenticator
    proxies: frozenset[str] = frozenset()
    """Addresses from which it connects; any where empty."""
    header: str = ""
    """Has who signed in, where the authenticator reads one."""
    pages: Callable[[str], ASGIApp] | None = None
    """Returns a user's own pages, or raises FederationError; all have the same where None."""

    def user(self, headers: Headers, scope: Scope) -> str:
        """Return who signed in; raises Unauthorised."""
        address = (scope.get("client") or ("nowhere",))[0]
        if self.proxies and address not in self.proxies:
            raise Unauthorised(f"{address} is none of the sign-on's addresses (--proxy)")
        try:
            named = [*self.by.users(headers, self.header)]
            user = "".join(named)
        except Unauthorised:
            raise
        except Exception as error:  # a package's own: who cannot be read is refused
            raise Unauthorised(f"the authenticator failed: {type(error).__name__}") from error
        anyone = self.by.has_password and self.pages is None
        if len(named) > 1 or not (user or anyone):
            raise Unauthorised(
                f"expected who signed in, once, in {self.header or self.by.where}; "
                f"received {len([one for one in named if one])} names"
            )
        return user


class Guard:
    """Refuses strangers before any page is made.

    Parameters
    ----------
    app : ASGI application, optional
        All users' pages; those of ``sign_on`` if None.
    secret : str
        In the address that is printed at the start; with ``sign_on`` what the proxy shows.
    hosts : tuple of str
        Names under which browsers reach the console, without ports.
    secure : bool
        Whether browsers reach it by HTTPS, which a proxy ends.
    sign_on : SignOn, optional
        The proxy before it: then neither address nor cookie admits anybody.
    trail : Trail, optional
        Gets who is refused.
    operator : str
        By whose certificate the console acts.
    """

    def __init__(
        self,
        app: ASGIApp | None,
        secret: str,
        hosts: tuple[str, ...],
        *,
        secure: bool = False,
        sign_on: SignOn | None = None,
        trail: Trail = NOWHERE,
        operator: str = "",
    ) -> None:
        self._trail, self._operator = trail, operator
        self._app = app
        self._secret = secret
        self._hosts = frozenset(hosts)
        self._scheme = "https" if secure else "http"
        self._sign_on = sign_on
        # Cookies are for all ports of a host: each console has one of its own name.
        self._cookie = "hedgerow_" + hashlib.sha256(secret.encode()).hexdigest()[:16]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != "http":
            if self._app is not None:
                await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("content-security-policy", PAGES)
                headers.setdefault("cache-control", "no-store")
                headers["x-content-type-options"] = "nosniff"
                headers["x-frame-options"] = "DENY"
                headers["referrer-policy"] = "same-origin"  # without, forms have the origin null
                headers["cross-origin-opener-policy"] = "same-origin"
                headers["cross-origin-resource-policy"] = "same-origin"
            await send(message)

        refusal, app = self._refusal(scope), self._app
        if refusal is None and self._sign_on is not None and self._sign_on.pages is not None:
            try:
                app = await run_in_threadpool(self._sign_on.pages, scope[USER])
            except (FederationError, OSError) as error:
                refusal = PlainTextResponse(str(error), 403)
        handler = refusal or app
        assert handler is not None
        if refusal is not None and refusal.status_code >= 400:
            about = {"error.code": str(refusal.status_code)}
            self._trail.enqueue_limited(
                "call-refused", who(scope, self._operator), "failure", about
            )
        await handler(scope, receive, sending)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name not in self._hosts:
            return PlainTextResponse("the console is not known under this name", 421)
        if scope["method"] not in ("GET", "HEAD"):
            origin = headers.get("origin", "")
            if origin != f"{self._scheme}://{host}":
                return PlainTextResponse("changes are made from the console's own pages", 403)
        if self._sign_on is not None:
            if self._sign_on.by.has_password and not self._same(_basic(headers)[1]):
                return PlainTextResponse("the console is reached through the sign-on only", 401)
            try:
                scope[USER] = self._sign_on.user(headers, scope)
            except Unauthorised as error:
                return PlainTextResponse(str(error), 403)
            scope[ADMIT]("the sign-on")
            return None
        if self._same(_cookie(headers, self._cookie)):
            scope[ADMIT]("the operator")
            return None
        query = parse_qs(scope["query_string"].decode("ascii", "replace"))
        if self._same(query.get("secret", [""])[0]):
            found = RedirectResponse(scope["path"], 303)
            found.set_cookie(
                self._cookie,
                self._secret,
                httponly=True,
                samesite="strict",
                secure=self._scheme == "https",
            )
            return found
        return PlainTextResponse(
            "open the address that `hedgerow console` printed: it has the secret of this console",
            401,
        )

    def _same(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._secret.encode())


def who(scope: Scope, operator: str) -> Actor:
    """Return who makes a request: as the sign-on says, else the holder of the console's address."""
    client = scope.get("client")
    address = client[0] if client else ""
    user = scope.get(USER, "")
    role = "operator" if operator and not user else ""
    return Actor(user or operator, role, address, operator if user else "")


def _basic(headers: Headers) -> tuple[str, str]:
    """Return user and password of basic authentication; empty where there is none."""
    scheme, _, packed = headers.get("authorization", "").partition(" ")
    try:
        text = base64.b64decode(packed, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    user, colon, password = text.partition(":")
    return (user, password) if scheme.lower() == "basic" and colon else ("", "")


def _cookie(headers: Headers, name: str) -> str:
    try:
        found: SimpleCookie = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return ""
    return found[name].value if name in found else ""


def form_token(key: bytes) -> str:
    """Return the token that every form of this process repeats."""
    return hmac.new(key, b"form", hashlib.sha256).hexdigest()


async def read_form(request: Any, token: str) -> dict[str, str] | None:
    """Return the fields of a form; None without the token, or where it is too long.

    A field that is there several times has a line for each.
    """
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_FORM_BYTES:
                return None
    except ClientDisconnect:
        return None
    fields = {k: "\n".join(v) for k, v in parse_qs(body.decode("utf-8", "replace")).items()}
    if not hmac.compare_digest(fields.get("token", "").encode(), token.encode()):
        return None
    return fields
