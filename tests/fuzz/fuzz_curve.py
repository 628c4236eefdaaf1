"""Fuzz the decoders of curve points, keys, intersection messages and ids.

``python -m tests.fuzz.fuzz_curve -max_total_time=60`` (libFuzzer's options). An input that raises
anything but the stated exceptions, or on which two kernels differ, is a finding.
"""

from __future__ import annotations

import atheris
import numpy as np

from hedgerow.crypto.errors import InvalidPoint

with atheris.instrument_imports(include=["hedgerow.crypto"]):
    from hedgerow.crypto.arithmetic import curve25519 as curve
    from hedgerow.crypto.arithmetic.engine import Engine, available_kernels
    from hedgerow.crypto.ciphers.elgamal import ElGamalPrivateKey, ElGamalPublicKey
    from hedgerow.crypto.errors import KeyRejected, PsiRefused
    from hedgerow.crypto.intersection.identifiers import normalise_id
    from hedgerow.crypto.intersection.psi import PsiKind, PsiMessage, PsiParty, PsiPolicy
    from hedgerow.crypto.vault.blinding import LocalBlinder
from tests.fuzz.running import fuzz, of_bytes

KERNELS = [Engine(name, 1).curve() for name in available_kernels()]
VALID = b"".join(curve.ristretto_encode(curve.multiply(n * n + 1, curve.BASE)) for n in range(3))
ROSTER = ("a", "b", "c")


def near(valid: bytes, data: bytes) -> bytes:
    """Change single bytes of something valid: (position, value) pairs."""
    out = bytearray(valid)
    for at, value in zip(data[::2], data[1::2], strict=False):
        out[at % len(out)] ^= value
    return bytes(out)


def decode_rows(data: bytes) -> None:
    outcomes = set()
    for kernel in KERNELS:
        try:
            rows = kernel.load(data)
        except InvalidPoint as refused:
            outcomes.add(str(refused))
            continue
        n = len(rows)
        outcomes.add(rows.sum_segments(np.arange(n, dtype=np.uint32), np.arange(n + 1)).encode())
    assert len(outcomes) == 1, "the kernels differ"
    (outcome,) = outcomes
    assert isinstance(outcome, str) or outcome == data, "decoding is not canonical"


def multiply_points(data: bytes) -> None:
    points, outcomes = data[: len(data) // 32 * 32], set()
    for kernel in KERNELS:
        try:
            outcomes.add(kernel.multiply(points, VALID[:32]))
        except InvalidPoint:
            outcomes.add(b"refused")
    assert len(outcomes) == 1, "the kernels differ"


def map_hashes(data: bytes) -> None:
    uniform = data[: len(data) // 48 * 48]
    assert len({kernel.map_to_curve(uniform) for kernel in KERNELS}) == 1, "the kernels differ"


def read_keys(data: bytes) -> None:
    for read in (ElGamalPublicKey.from_bytes, ElGamalPrivateKey.from_bytes):
        try:
            key = read(data)
        except KeyRejected:
            continue
        assert key.to_bytes() == data


def take_messages(data: bytes) -> None:
    party = PsiParty(
        session=b"fuzz",
        name=ROSTER[data[0] % 3] if data else "a",
        roster=ROSTER,
        ids=["x", "y", "z"],
        policy=PsiPolicy(max_elements=8),
        blinder=LocalBlinder(b"fuzz", KERNELS[0]),
    )
    party.start()
    reader = atheris.FuzzedDataProvider(data[1:])
    for _ in range(6):
        message = PsiMessage(
            kind=PsiKind(reader.ConsumeIntInRange(1, 3)),
            sender=reader.PickValueInList(list(ROSTER)),
            recipient=reader.PickValueInList(list(ROSTER)),
            owner=reader.PickValueInList([*ROSTER, "d"]),
            payload=reader.ConsumeBytes(reader.ConsumeIntInRange(0, 128)),
        )
        try:
            party.receive(message)
        except PsiRefused:
            continue


def read_ids(data: bytes) -> None:
    try:
        normalised = normalise_id(data)
    except ValueError:
        return
    assert normalised is None or normalise_id(normalised) == normalised


TARGETS = of_bytes(
    rows=decode_rows,
    near_rows=lambda data: decode_rows(near(VALID, data)),
    points=multiply_points,
    hashes=map_hashes,
    keys=read_keys,
    near_keys=lambda data: read_keys(near(VALID[32:], data)),
    messages=take_messages,
    ids=read_ids,
)

if __name__ == "__main__":
    fuzz(TARGETS, "-len_control=0", "-max_len=1024")
