"""Serve the app at one port until a signal ends it."""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn
from fastapi import FastAPI

from ..core.signals import on_stop
from ..errors import ParameterError, shorten
from .guard import WILDCARDS, Guard

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Hosts that only this machine reaches."""
MOST_REQUESTS = 256
"""Connections at once; further ones are refused."""
ENDING = 5
"""Seconds that requests have to end when the server ends."""


@dataclass(frozen=True)
class Address:
    """Where the server listens.

    Attributes
    ----------
    host : name or address; anything but this machine itself needs ``allow_network``.
    port : 0 is any free one.
    token : the secret of the server; by default a new one.
    """

    host: str = "127.0.0.1"
    port: int = 8787
    allow_network: bool = False
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def __post_init__(self) -> None:
        if self.host not in LOOPBACK and not self.allow_network:
            raise ParameterError(
                f"Other machines could reach {shorten(self.host)}; give --allow-network too, if that is what you want."
            )
        if not 0 <= self.port <= 65_535:
            raise ParameterError(f"A port is a number from 0 to 65535, not {self.port}.")
        if (
            len(self.token) < 16
            or not self.token.isascii()
            or not all(sign.isalnum() or sign in "-_" for sign in self.token)
        ):
            raise ParameterError("A token has at least 16 letters, digits, - and _; leave it out to get a new one.")

    def bound(self) -> socket.socket:
        """A socket that listens there."""
        try:
            family, kind, protocol, _, place = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            made = socket.socket(family, kind, protocol)
        except OSError as error:
            raise ParameterError(f"{shorten(self.host)} is no address of this machine ({error.strerror}).") from error
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(place)
            made.listen(MOST_REQUESTS)
        except OSError as error:
            made.close()
            if error.errno == errno.EADDRINUSE:
                sentence = f"Port {self.port} is taken; give another one, or --port 0 for any that is free."
            else:
                sentence = f"The server cannot listen at {self.host}:{self.port} ({error.strerror}); give another port."
            raise ParameterError(sentence) from error
        return made

    def url(self, port: int) -> str:
        """What to open in a browser."""
        shown = socket.gethostname() if self.host in WILDCARDS else self.host
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/?token={self.token}"


class StoppableServer(uvicorn.Server):
    """Ends at a signal and returns, where uvicorn would raise the signal once more."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ask the server to end at the first signal, and end at once at the second."""
        with on_stop(self.handle_exit):
            yield


def serve(app: FastAPI, address: Address, ready: Callable[[str], None]) -> str:
    """Serve until a signal comes, and give the address.

    Parameters
    ----------
    ready : called with the address when requests are taken.
    """
    with address.bound() as listening:
        port = listening.getsockname()[1]
        everywhere = address.host in WILDCARDS
        names = {address.host, *LOOPBACK, *([socket.gethostname()] if everywhere else [])}
        guarded = Guard(app, address.token, names, port, everywhere=everywhere)
        settings = uvicorn.Config(
            guarded,
            log_level="warning",
            access_log=False,  # it would write the token
            server_header=False,
            lifespan="on",
            limit_concurrency=MOST_REQUESTS,
            timeout_graceful_shutdown=ENDING,
            timeout_keep_alive=30,
            ws="none",
        )
        ready(address.url(port))
        StoppableServer(settings).run(sockets=[listening])
        return address.url(port)
