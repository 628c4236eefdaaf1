"""Report whether a process serves; ``python -m hedgerow.services.process.probe`` in containers.

A server is asked through the gRPC health service, over mTLS with the process' own identity; an
agent, which serves nothing but its metrics, by whether it holds a lease at its coordinator; a
console by whether it answers. Only what is needed is imported, for the check runs every few
seconds.
"""

from __future__ import annotations

import argparse
import http.client
import signal
import sys
import urllib.request
from pathlib import Path

TIMEOUT_SECONDS = 3.0
LIFE_SECONDS = 8
"""A probe ends itself then: engines leave those running whose time is up, and they pile up."""
_FILES = ("ca.crt", "tls.key", "tls.crt")
LEASE = "hedgerow_lease_held 1.0"
"""Line in an agent's metrics while its coordinator knows it."""


def serving(address: str, identity: Path) -> bool:
    """Return whether the gRPC server at ``HOST:PORT`` says SERVING.

    Parameters
    ----------
    identity : Path
        Folder with the tls.key, tls.crt and ca.crt of the process itself.
    """
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    roots, key, own = (identity.joinpath(name).read_bytes() for name in _FILES)
    if b"ENCRYPTED" in key:  # by the process' passphrase, of the environment
        from hedgerow.services.identity.certificates import IdentityUnusable, read_key

        try:
            key = read_key(identity / "tls.key")
        except IdentityUnusable as error:
            print(error, file=sys.stderr)
            return False
    credentials = grpc.ssl_channel_credentials(roots, key, own)
    options = (("grpc.enable_http_proxy", 0),)
    with grpc.secure_channel(address, credentials, options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            print(error.details() or error.code().name, file=sys.stderr)
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def leased(address: str) -> bool:
    """Return whether the agent whose metrics are at ``HOST:PORT`` holds its lease."""
    url = f"http://{address}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
            return LEASE in answer.read().decode().splitlines()
    except OSError as error:
        print(error, file=sys.stderr)
        return False


def answering(address: str) -> bool:
    """Return whether a console answers at ``HOST:PORT``, though it refuses strangers."""
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("HEAD", "/")
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException) as error:
        print(error, file=sys.stderr)
        return False


def main() -> None:
    """Exit with 0 if the process serves, else with 1."""
    signal.alarm(LIFE_SECONDS)
    parser = argparse.ArgumentParser(
        prog="python -m hedgerow.services.process.probe", description=__doc__
    )
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("--identity", type=Path, help="folder of the process' own identity")
    parser.add_argument("--agent", action="store_true", help="HOST:PORT is an agent's /metrics")
    parser.add_argument("--console", action="store_true", help="HOST:PORT is a console's")
    given = parser.parse_args()
    if given.agent:
        healthy = leased(given.address)
    elif given.console:
        healthy = answering(given.address)
    elif given.identity is not None:
        healthy = serving(given.address, given.identity)
    else:
        parser.error("--identity, --agent or --console is needed")
    sys.exit(0 if healthy else 1)


if __name__ == "__main__":
    main()
