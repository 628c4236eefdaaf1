"""A server between a joiner and an inviter, with a certificate of its own."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from pathlib import Path

from hedgerow.services.identity import authority
from hedgerow.services.rpc.enrolment import SERVER_NAME


class Interceptor:
    """Takes connections in place of a server: passes the first ``passed`` on, answers the others.

    What it hears in TLS is in ``heard``.
    """

    def __init__(self, to: str, passed: int, folder: Path) -> None:
        self.heard: list[bytes] = []
        self._to, self._passed = to.rpartition(":"), passed
        key, certificate = authority.lone_server(SERVER_NAME, time.time(), 600)
        (folder / "mitm.pem").write_bytes(key + certificate)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "mitm.pem")
        self._context.set_alpn_protocols(["h2"])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                taken, _ = self._listener.accept()
            except OSError:
                return
            self._passed -= 1
            serve = self._pass if self._passed >= 0 else self._answer
            threading.Thread(target=serve, args=(taken,), daemon=True).start()

    def _pass(self, taken: socket.socket) -> None:
        there = socket.create_connection((self._to[0], int(self._to[2])))
        threading.Thread(target=_copy, args=(there, taken), daemon=True).start()
        _copy(taken, there)

    def _answer(self, taken: socket.socket) -> None:
        try:
            with self._context.wrap_socket(taken, server_side=True) as secured:
                while data := secured.recv(4096):
                    self.heard.append(data)
        except OSError:
            return

    def close(self) -> None:
        self._listener.close()


def _copy(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(4096):
            other.sendall(data)
    except OSError:
        pass
    finally:
        other.close()
