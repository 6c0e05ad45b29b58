"""What stands between the network and the app: who may ask, how much, and how answers may be used.

The server is for one person on one machine. A page of another site that is open in the same browser can send requests
to it too, under its own name (cross-site requests) or under a name that it makes point to this machine (DNS
rebinding), so that the address alone does not say who asks.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import AttrimError

MOST_BYTES = 256 * 1024
"""Of a request's body: a text of the greatest length fits, every character of it written as an escape sequence."""
TOO_LARGE = f"A request may have {MOST_BYTES // 1024} KiB at most; shorten the text"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
"""On every answer, whatever it is."""
WILDCARDS = ("0.0.0.0", "::")
"""Addresses that mean every network interface."""


class Refused(AttrimError):
    """A request that is not answered.

    Attributes
    ----------
    status : the HTTP status that says so.
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Guard:
    """Lets through what comes from the person who started the server.

    Parameters
    ----------
    app : what answers.
    token : the secret that a request must know: in a cookie, in the header ``Authorization``, or, to open the page, as
        ``?token=``, which makes the cookie.
    hosts : names that the server may be called by; addresses are written as numbers.
    port : that it listens at.
    everywhere : it listens at every interface, so that any address, but no other name, is its own.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str], port: int, *, everywhere: bool = False) -> None:
        self.app, self.port, self.everywhere = app, port, everywhere
        self.hosts = frozenset(host.lower() for host in hosts)
        self.cookie = f"attrim-{port}"  # cookies do not tell ports apart, and there may be two servers
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it in one sentence."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        opened = False

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if opened:
                    kept = f"{self.cookie}={self._token.decode()}; Path=/; HttpOnly; SameSite=Strict"
                    headers.append("Set-Cookie", kept)
            await send(message)

        counted = _Counted(receive)
        try:
            opened = self._check(scope)
            await self.app(scope, counted, answer)
        except Refused as error:
            opened = False
            await _refuse(error, answer)

    def _check(self, scope: Scope) -> bool:
        """Refuse what may not be asked; True where the page is opened with a right token in its address."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_own(host):
            raise Refused(403, "This server does not go by the name in the Host header; use the address it printed.")
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host.lower()}":
            raise Refused(403, "Requests from pages of other sites are not answered.")
        navigates = scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not navigates:
            raise Refused(403, "Requests from pages of other sites are not answered.")
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdecimal() or len(length) > 12 or int(length) > MOST_BYTES:
            raise Refused(413, f"{TOO_LARGE}.")
        if self._knows(headers):
            return False
        given = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=20).get("token", [""])[0]
        if scope["path"] == "/" and scope["method"] == "GET" and self._is_token(given):
            return True
        raise Refused(401, "The token is missing or wrong; open the address that 'attrim serve' printed at its start.")

    def _knows(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() in ("bearer", "token") and self._is_token(given.strip()):
            return True
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        return self.cookie in cookies and self._is_token(cookies[self.cookie].value)

    def _is_token(self, given: str) -> bool:
        # In constant time, so that the answer's delay does not tell how much of a guess was right.
        return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self._token)

    def _is_own(self, host: str) -> bool:
        """Whether ``NAME[:PORT]`` is a name of this server."""
        name, colon, port = host.lower().rpartition(":")
        if not colon or name.endswith(":") or (host.startswith("[") and host.endswith("]")):
            name, port = host.lower(), "80"
        if port != str(self.port):
            return False
        plain = name.removeprefix("[").removesuffix("]")
        if plain in self.hosts:
            return True
        try:
            ipaddress.ip_address(plain)
        except ValueError:
            return False
        return self.everywhere  # an address cannot be made to point elsewhere, a name can


class _Counted:
    """Receives a request's body, up to a size, also where nothing says before how long it is."""

    def __init__(self, receive: Receive) -> None:
        self.receive, self.bytes = receive, 0

    async def __call__(self) -> Message:
        message = await self.receive()
        self.bytes += len(message.get("body", b""))
        if self.bytes > MOST_BYTES:
            raise HTTPException(413, TOO_LARGE)  # of this kind, because FastAPI makes others say something else
        return message


async def _refuse(error: Refused, send: Send) -> None:
    body = json.dumps({"error": str(error)}).encode()
    kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if error.status == 401:
        kind.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": error.status, "headers": kind})
    await send({"type": "http.response.body", "body": body})
