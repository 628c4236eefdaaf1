"""Fuzz what the crypto service reads: frames of every method, as bytes and as odd arrays.

``python -m tests.fuzz.fuzz_crypto_service -max_total_time=60`` (libFuzzer's options). A call that
ends otherwise than with an answer or a refusal is a finding.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import atheris
import grpc
import numpy as np

with atheris.instrument_imports(
    include=["hedgerow.crypto", "hedgerow.services.rpc.ciphers", "hedgerow.services.wire.arrays"]
):
    from google.protobuf.message import DecodeError

    from hedgerow.api.crypto.v1 import crypto_service_pb2 as pb
    from hedgerow.api.federation.v1 import tensor_pb2
    from hedgerow.crypto.engine import Engine
    from hedgerow.crypto.local_vault import LocalVault
    from hedgerow.crypto.packing import PairLayout
    from hedgerow.services.identity.authority import throwaway
    from hedgerow.services.rpc.crypto import CryptoServicer
    from hedgerow.services.rpc.metering import Metrics
    from hedgerow.services.wire.arrays import DTYPES, encode_arrays

METHODS = list(pb.DESCRIPTOR.services_by_name["CryptoService"].methods)
REFUSED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
}
SCHEMES = ("paillier", "elgamal")
NAMES = ("grad", "hess", "bins", "rows", "starts", "order", "values", "0", "1", "index", "ids",
         "ends", "points")  # fmt: skip
LAYOUT = PairLayout(4, 16, 16, 8)

VAULT = LocalVault(engine=Engine(workers=1), insecure_test_keys=True)
KEYS = {scheme: VAULT.create_cipher_key(scheme, 64, scheme) for scheme in SCHEMES}
HALF = np.full((4, 1), 0.5)
ROWS = {scheme: VAULT.encrypt_gradients(scheme, LAYOUT, HALF, HALF) for scheme in SCHEMES}
BINS = np.array([[0], [1], [1], [0]], np.uint8)
VALID = {
    "grad": HALF,
    "hess": HALF,
    "bins": BINS,
    "rows": np.arange(4, dtype="<u4"),
    "starts": np.array([0, 4]),
    "order": np.array([1, 0]),
    "values": np.array([1, -2]),
    "index": np.array([0, 1], "<u4"),
    "ids": np.frombuffer(b"abcd", np.uint8),
    "ends": np.array([1, 4]),
    "points": np.full((2, 32), 9, np.uint8),
}


class Refused(Exception):
    """The call was ended with a status that says what was expected."""


class Context:
    """A call of the silo's own agent."""

    def __init__(self, certificate: bytes) -> None:
        self._certificate = certificate

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": [self._certificate]}

    async def abort(self, code: grpc.StatusCode, details: str, trailing: Any = ()) -> None:
        assert code in REFUSED, (code, details)
        assert details
        raise grpc.aio.AbortError(details)


class Service:
    """A servicer on a loop of this thread."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            paths = throwaway(Path(folder), ["ash"], time.time())
            self._context = Context(paths["silo/ash"].certificate.read_bytes())
        self._runner = asyncio.Runner()
        self._servicer = CryptoServicer(VAULT, "ash", Metrics(), 2)

    def call(self, name: str, frames: list[Any], streamed: bool) -> None:
        """Call a method, and read its answer; the keys are there again afterwards."""
        self._runner.run(self._call(name, frames, streamed))
        for scheme in SCHEMES:
            if scheme not in VAULT._owned:
                KEYS[scheme] = VAULT.create_cipher_key(scheme, 64, scheme)
                ROWS[scheme] = VAULT.encrypt_gradients(scheme, LAYOUT, HALF, HALF)

    async def _call(self, name: str, frames: list[Any], streamed: bool) -> None:
        async def generator() -> AsyncIterator[Any]:
            for frame in frames:
                yield frame

        method = getattr(self._servicer, name)
        try:
            answer = method(generator() if streamed else frames[0], self._context)
            if hasattr(answer, "__aiter__"):
                async for frame in answer:
                    frame.SerializeToString()
            else:
                (await answer).SerializeToString()
        except grpc.aio.AbortError:
            return


SERVICE = Service()


def parsed(data: bytes) -> None:
    """Any bytes that protobuf reads as frames."""
    provider = atheris.FuzzedDataProvider(data)
    method = METHODS[provider.ConsumeIntInRange(0, len(METHODS) - 1)]
    request = getattr(pb, method.input_type.name)
    frames = []
    for _ in range(provider.ConsumeIntInRange(1, 4) if method.client_streaming else 1):
        try:
            frames.append(
                request.FromString(provider.ConsumeBytes(provider.ConsumeIntInRange(0, 90)))
            )
        except DecodeError:
            return
    if method.name == "SealShares":
        return  # work in proportion to a number: their own agent's business
    SERVICE.call(method.name, frames, method.client_streaming)


def arranged(data: bytes) -> None:
    """Heads and arrays that fit, but for what the input changes."""
    provider = atheris.FuzzedDataProvider(data)
    streams = [m for m in METHODS if "array" in m.input_type.fields_by_name]
    method = streams[provider.ConsumeIntInRange(0, len(streams) - 1)]
    scheme = SCHEMES[provider.ConsumeIntInRange(0, 1)]
    request = getattr(pb, method.input_type.name)
    head = request().head
    fields = head.DESCRIPTOR.fields_by_name
    odd = provider.ConsumeBool
    if "session" in fields:
        head.session = "other" if odd() else scheme
    if "public_key" in fields:
        key = bytearray(KEYS[scheme])
        if odd():
            key[provider.ConsumeIntInRange(0, len(key) - 1)] ^= provider.ConsumeIntInRange(0, 255)
        head.public_key = bytes(key)
    if "layout" in fields:
        head.layout.CopyFrom(
            pb.PairLayout(
                fraction_bits=provider.ConsumeIntInRange(0, 60) if odd() else LAYOUT.fraction_bits,
                largest_grad=provider.ConsumeInt(8) & (1 << 64) - 1 if odd() else 16,
                largest_hess=provider.ConsumeInt(8) & (1 << 64) - 1 if odd() else 16,
                n_rows=provider.ConsumeInt(8) & (1 << 64) - 1 if odd() else 8,
                n_classes=provider.ConsumeInt(4) & 0xFFFFFFFF if odd() else 1,
            )
        )
    if method.name == "HoldRows":
        head.n_bins.extend(provider.ConsumeIntInRange(0, 3) for _ in range(1 + odd()))
    if method.name == "DecryptHistograms":
        head.n_bins = provider.ConsumeIntInRange(0, 5)
    if method.name == "SumBins":
        head.cumulative = odd()
        head.missing.extend(odd() for _ in range(odd()))
    frames = [request(head=head)]
    for _ in range(provider.ConsumeIntInRange(0, 4)):
        name = NAMES[provider.ConsumeIntInRange(0, len(NAMES) - 1)]
        array = ROWS[scheme][0] if name in "01" else VALID[name]
        (block,) = encode_arrays({name: array})
        if odd():
            block = tensor_pb2.TensorBlock(
                name=name,
                dtype=sorted(DTYPES)[provider.ConsumeIntInRange(0, len(DTYPES) - 1)],
                shape=[provider.ConsumeIntInRange(0, 8) for _ in range(1 + odd() + odd())],
                data=provider.ConsumeBytes(provider.ConsumeIntInRange(0, 64)),
                compressed=odd() and odd(),
            )
        elif odd() and block.data:
            changed = bytearray(block.data)
            at = provider.ConsumeIntInRange(0, len(changed) - 1)
            changed[at] ^= provider.ConsumeIntInRange(0, 255)
            block.data = bytes(changed)
        frames.append(request(array=block))
    SERVICE.call(method.name, frames, True)


TARGETS = [parsed, arranged, arranged]


def one_input(data: bytes) -> None:
    """Run the target that the first byte names on the rest."""
    if data:
        TARGETS[data[0] % len(TARGETS)](data[1:])


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
