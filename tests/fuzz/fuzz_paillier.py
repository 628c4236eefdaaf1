"""Fuzz what Paillier reads from others: keys, ciphertexts, answers, bins.

``python -m tests.fuzz.fuzz_paillier -max_total_time=60`` (libFuzzer options). An input that raises
anything but the stated refusals, or that comes back changed, is a finding.
"""

from __future__ import annotations

import atheris
import numpy as np

with atheris.instrument_imports(include=["hedgerow.crypto"]):
    from hedgerow.crypto.arithmetic.engine import Engine, available_kernels
    from hedgerow.crypto.arithmetic.modular import ints_to_bytes
    from hedgerow.crypto.ciphers.ciphertext_histogram import CiphertextHistograms, read_answer
    from hedgerow.crypto.ciphers.key_files import SealingSecret, open_private_key, seal_private_key
    from hedgerow.crypto.ciphers.packing import PairLayout
    from hedgerow.crypto.ciphers.paillier import KeyHolder
    from hedgerow.crypto.ciphers.paillier_keys import PrivateKey, PublicKey
    from hedgerow.crypto.ciphers.roles import ciphertext_rows
    from hedgerow.crypto.errors import (
        CiphertextRejected,
        HistogramRefused,
        KeyRejected,
        PackingRefused,
        PlaintextOutOfRange,
    )

from tests.fuzz.running import Provider, changed, fuzz, of_bytes

# A fixed 64-bit key: small, so that overflows and special values are met often.
KEY = PrivateKey(PublicKey(4294967291 * 4294967279, insecure_test_key=True), 4294967291, 4294967279)
ENGINE = Engine(available_kernels()[0], workers=1)
HOLDER = KeyHolder(KEY, ENGINE)
SECRET = SealingSecret("key file", bytes(32))
SEALED = seal_private_key(KEY, SECRET)
PUBLIC = (KEY.public_key.to_bytes(), KEY.certified_bytes())
WIDTH = KEY.public_key.ciphertext_bytes


def public_key(provider: Provider) -> None:
    """Damage a key alone and one with its proof: none that differs comes with a sound proof."""
    data = changed(PUBLIC[provider.ConsumeIntInRange(0, 1)], provider)
    for read in (PublicKey.from_bytes, PublicKey.from_certified):
        try:
            key = read(data, insecure_test_key=True)
        except KeyRejected:
            continue
        if read == PublicKey.from_bytes:
            assert key.to_bytes() == data
        else:
            assert (key, data) == (KEY.public_key, PUBLIC[1])


def private_key(data: bytes) -> None:
    """Damage a sealed key at places and by amounts that the input says."""
    sealed = bytearray(SEALED)
    for at in range(0, len(data) - 1, 2):
        sealed[data[at] % len(sealed)] ^= data[at + 1]
    if len(data) % 2:
        sealed = sealed[: data[-1]]
    try:
        key = open_private_key(bytes(sealed), SECRET, insecure_test_key=True)
    except KeyRejected:
        return
    assert key == KEY
    assert bytes(sealed) == SEALED


def ciphertexts(data: bytes) -> None:
    provider = atheris.FuzzedDataProvider(data)
    payload = provider.ConsumeBytes(200)
    try:
        vector = ciphertext_rows(payload, WIDTH)
        residues = HOLDER.public.load(vector)
        assert HOLDER.public.store(residues).tobytes() == payload
        plaintexts = HOLDER.decrypt(vector)
    except (CiphertextRejected, PlaintextOutOfRange):
        return
    assert len(plaintexts) == len(vector)
    assert all(abs(m) <= KEY.public_key.largest_plaintext for m in plaintexts)


def answer(data: bytes) -> None:
    """Read any bytes as an answer under any layout."""
    provider = atheris.FuzzedDataProvider(data)
    try:
        layout = PairLayout(
            provider.ConsumeIntInRange(-1, 54),
            provider.ConsumeIntInRange(0, 1 << 20),
            provider.ConsumeIntInRange(0, 1 << 20),
            provider.ConsumeIntInRange(0, 1 << 12),
            provider.ConsumeIntInRange(0, 3),
        )
        n_bins = provider.ConsumeIntInRange(0, 12)
        payload = provider.ConsumeBytes(200)
        vector = ciphertext_rows(payload, WIDTH)
        grad, hess = read_answer(HOLDER, vector, n_bins, layout)
    except (PackingRefused, HistogramRefused, CiphertextRejected, PlaintextOutOfRange):
        return
    assert grad.shape == hess.shape == (n_bins, layout.n_classes)


def unpack(data: bytes) -> None:
    """Unpack any plaintext, pack what came out, and get the plaintext again."""
    provider = atheris.FuzzedDataProvider(data)
    layout = PairLayout(
        provider.ConsumeIntInRange(0, 52),
        provider.ConsumeIntInRange(1, 1 << 40),
        provider.ConsumeIntInRange(1, 1 << 40),
        provider.ConsumeIntInRange(1, 1 << 20),
        provider.ConsumeIntInRange(1, 3),
    )
    count = provider.ConsumeIntInRange(0, 6)
    plaintext = int.from_bytes(provider.ConsumeBytes(120), "little", signed=True)
    try:
        grad, hess = layout.unpack([plaintext], [count])
    except PlaintextOutOfRange:
        return
    packed = 0
    for g_row, h_row in zip(grad.tolist(), hess.tolist(), strict=True):
        own = 0
        for g, h in zip(g_row, h_row, strict=True):
            own = (own << layout.pair_bits) + (g << layout.hess_bits) + h
        packed = (packed << layout.bin_bits) + own
    assert packed == plaintext


def histogram(data: bytes) -> None:
    """Sum any rows into any bins; a crash of a kernel would end the process."""
    provider = atheris.FuzzedDataProvider(data)
    n_rows, n_features = provider.ConsumeIntInRange(0, 12), provider.ConsumeIntInRange(0, 4)
    bins = np.frombuffer(provider.ConsumeBytes(n_rows * n_features), np.uint8)
    n_bins = [provider.ConsumeIntInRange(0, 6) for _ in range(provider.ConsumeIntInRange(0, 4))]
    rows = [provider.ConsumeIntInRange(-1, 12) for _ in range(provider.ConsumeIntInRange(0, 9))]
    vector = ints_to_bytes(range(1, n_rows + 1), WIDTH)
    if len(bins) != n_rows * n_features:
        return
    try:
        histograms = CiphertextHistograms(
            HOLDER.public, vector, bins.reshape(n_rows, n_features), n_bins
        )
        sums = histograms.sums(np.array(rows, np.int64))
    except HistogramRefused:
        return
    assert len(sums) == sum(n_bins)


TARGETS = {
    "public_key": public_key,
    **of_bytes(
        private_key=private_key,
        ciphertexts=ciphertexts,
        answer=answer,
        unpack=unpack,
        histogram=histogram,
    ),
}

if __name__ == "__main__":
    fuzz(TARGETS, "-len_control=0", "-max_len=1024")
