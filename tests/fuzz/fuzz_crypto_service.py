"""Fuzz what the crypto service reads: frames of every method, as bytes and as odd arrays.

``python -m tests.fuzz.fuzz_crypto_service -max_total_time=60`` (libFuzzer's options). A call that
ends otherwise than with an answer or a refusal is a finding.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import atheris
import grpc
import numpy as np

with atheris.instrument_imports(
    include=["hedgerow.crypto", "hedgerow.services.rpc.ciphers", "hedgerow.services.wire.ciphers"]
):
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    from hedgerow.api.crypto.v1 import cipher_pb2 as pb
    from hedgerow.api.crypto.v1 import crypto_service_pb2 as service
    from hedgerow.crypto.arithmetic.engine import Engine
    from hedgerow.crypto.ciphers.packing import PairLayout
    from hedgerow.crypto.vault.local_vault import LocalVault
    from hedgerow.services.identity.authority import throwaway
    from hedgerow.services.identity.revocation import RevokedCertificates
    from hedgerow.services.rpc.crypto import CryptoServicer
    from hedgerow.services.rpc.metering import Metrics
    from tests.services.rpc.crypto_servers import Caller
from tests.fuzz.running import fuzz, of_bytes

METHODS = list(service.DESCRIPTOR.services_by_name["CryptoService"].methods)
REFUSED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
}
SCHEMES = ("paillier", "elgamal")
LAYOUT = PairLayout(4, 16, 16, 8)
N_NODES = [0, 2, 3, 40, 1 << 20, (1 << 20) + 1, (1 << 32) - 1]

VAULT = LocalVault(engine=Engine(workers=1), insecure_test_keys=True)
KEYS = {scheme: VAULT.create_cipher_key(scheme, 64, scheme) for scheme in SCHEMES}
HALF = np.full((4, 1), 0.5)
ROWS = {scheme: VAULT.encrypt_gradients(scheme, LAYOUT, HALF, HALF) for scheme in SCHEMES}
VALID = {
    "bins": bytes([0, 1, 1, 0]),
    "cells": np.array([0, 2], "<u4").tobytes(),
    "listed": np.array([1, 2], "<u4").tobytes(),
    "rows": np.arange(4, dtype="<u4").tobytes(),
    "order": np.array([1, 0], "<u4").tobytes(),
    "values": np.array([1, -2], "<i8").tobytes(),
    "index": np.array([0, 1], "<u4").tobytes(),
    "starts": np.array([0, 2], "<i8").tobytes(),
    "points": b"\x09" * 64,
}


class Context(Caller):
    """A call of the silo's own agent, which may end with a refusal only."""

    async def abort(self, code: grpc.StatusCode, details: str, trailing: Any = ()) -> None:
        assert code in REFUSED, (code, details)
        assert details
        await super().abort(code, details)


class Service:
    """A servicer on a loop of this thread."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        paths = throwaway(Path(self._folder.name), ["ash"], time.time())
        self._context = Context(paths["silo/ash"].certificate.read_bytes())
        self._loop = asyncio.new_event_loop()  # a Runner sets signal handlers for each call
        self._servicer = CryptoServicer(
            VAULT, "ash", Metrics(), 2, RevokedCertificates(paths["crypto/ash"])
        )

    def call(self, name: str, frames: list[Any], streamed: bool) -> None:
        """Call a method, and read its answer; the keys are there again afterwards."""
        self._loop.run_until_complete(self._call(name, frames, streamed))
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
    request = GetMessageClass(method.input_type)
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
    """Heads and values that fit, but for what the input changes."""
    provider = atheris.FuzzedDataProvider(data)
    streams = [m for m in METHODS if m.client_streaming]
    method = streams[provider.ConsumeIntInRange(0, len(streams) - 1)]
    scheme = SCHEMES[provider.ConsumeIntInRange(0, 1)]
    request = GetMessageClass(method.input_type)
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
    if method.name == "HoldRows":
        if odd():
            head.usual_bins.extend(provider.ConsumeIntInRange(0, 3) for _ in range(1 + odd()))
            head.sparse_rows = provider.ConsumeIntInRange(0, 5) if odd() else 4
        else:
            head.bin_bytes = provider.ConsumeIntInRange(0, 3) if odd() else 1
    if method.name == "SumBins":
        head.n_nodes = provider.PickValueInList(N_NODES) if odd() else 1
        if odd():
            head.n_sums = provider.ConsumeIntInRange(0, 3)
    frames = [request(head=head)]
    contents = [f.name for f in request.DESCRIPTOR.fields if f.name != "head"]
    for _ in range(provider.ConsumeIntInRange(0, 4)):
        field = contents[provider.ConsumeIntInRange(0, len(contents) - 1)]
        frames.append(request(**{field: content(provider, scheme, field, method.name)}))
    SERVICE.call(method.name, frames, True)


def content(provider: Any, scheme: str, field: str, method: str) -> Any:
    """What a frame has in one of its fields."""

    def changed(data: bytes) -> bytes:
        if provider.ConsumeBool():
            return provider.ConsumeBytes(provider.ConsumeIntInRange(0, 200))
        out = bytearray(data)
        if out and provider.ConsumeBool():
            out[provider.ConsumeIntInRange(0, len(out) - 1)] ^= provider.ConsumeIntInRange(0, 255)
        return bytes(out)

    number = provider.ConsumeIntInRange(0, 2) if provider.ConsumeBool() else 0
    if field == "ciphertexts":
        return pb.CiphertextBlock(part=number, data=changed(ROWS[scheme][0].tobytes()))
    if field == "identifiers":
        return pb.Identifiers(ids=[changed(b"id") for _ in range(number)])
    if (method, field) == ("EncryptGradients", "rows"):
        grad = changed(HALF.tobytes())
        return pb.GradientRows(grad=grad, hess=changed(grad))
    if (method, field) == ("SumBins", "rows"):
        return pb.NodeRows(node=number, rows=changed(VALID["rows"]))
    return changed(VALID[field])


TARGETS = of_bytes(parsed=parsed, arranged=arranged)

if __name__ == "__main__":
    fuzz(TARGETS, "-len_control=0", "-max_len=1024")
