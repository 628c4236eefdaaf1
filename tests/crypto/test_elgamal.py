"""EC-ElGamal: every kernel gives the same bytes, sums decrypt to sums, bad input is refused."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.crypto.arithmetic import curve25519 as curve
from hedgerow.crypto.arithmetic.engine import Engine, available_kernels
from hedgerow.crypto.ciphers.elgamal import (
    ElGamalDecryption,
    ElGamalOperations,
    ElGamalPrivateKey,
    ElGamalPublicKey,
    ValueRange,
    generate_private_key,
)
from hedgerow.crypto.errors import InvalidPoint, KeyRejected, RangeRefused
from tests.crypto.test_curve25519 import BAD_ENCODINGS, HASH_TO_CURVE, MULTIPLES, X25519

KERNELS = available_kernels()
KEY = ElGamalPrivateKey(12345678901234567890123, 98765432109876543210987)
RANGE = ValueRange(12, 2000)


def drawn(n):
    """The same 'random' bytes for every kernel."""
    return np.random.default_rng(n).bytes(n)


@pytest.fixture(params=KERNELS)
def kernel(request):
    return Engine(request.param, 1).curve()


def operations(kernel, value_range=RANGE, entropy=os.urandom):
    return ElGamalOperations(KEY.public_key(), value_range, kernel, entropy)


def values(n, seed=1, most=1 << 12):
    rng = np.random.default_rng(seed)
    return rng.integers(-most, most, n, endpoint=True), rng.integers(0, most, n, endpoint=True)


def test_values_come_back(kernel):
    g, h = values(40)
    g[:3], h[:3] = (-4096, 0, 4096), (0, 4096, 1)
    got = ElGamalDecryption(KEY, RANGE, kernel).decrypt(operations(kernel).encrypt(g, h))
    np.testing.assert_array_equal(got, np.stack([g, h], 1))


@pytest.mark.parametrize("name", KERNELS[:-1])
def test_native_kernels_give_the_bytes_of_the_python_kernel(name):
    rng = np.random.default_rng(9)
    g, h = values(21)
    bins = rng.integers(0, 3, (21, 2)).astype(np.uint8)
    outputs = []
    for kernel in (Engine(name, 1).curve(), Engine("gmpy2", 1).curve()):
        public = operations(kernel, entropy=drawn)
        sent = public.encrypt(g, h)
        sums = public.histogram(public.load(sent), bins, 3)
        outputs.append((sent, sums, ElGamalDecryption(KEY, RANGE, kernel).decrypt(sums).tolist()))
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("name", KERNELS[:-1])
def test_native_kernels_pass_the_published_vectors(name):
    kernel = Engine(name, 1).curve()
    uniform = curve.hash_uniform(
        [message for message, *_ in HASH_TO_CURVE],
        b"QUUX-V01-CS02-with-curve25519_XMD:SHA-512_ELL2_NU_",
    )
    mapped = kernel.map_to_curve(uniform)
    assert [mapped[i : i + 32][::-1].hex() for i in range(0, 160, 32)] == [
        qx for _, _, qx, _ in HASH_TO_CURVE
    ]
    for scalar, u, product in X25519:
        got = kernel.multiply(bytes.fromhex(u) * 9, bytes.fromhex(scalar))
        assert got == bytes.fromhex(product) * 9
    encodings = bytes.fromhex("".join(MULTIPLES[:15]))
    assert kernel.load(encodings).sum_segments(
        np.arange(5, dtype=np.uint32), np.arange(6)
    ).encode() == (encodings)
    total = kernel.load(encodings).sum_segments(np.array([0, 1, 4], np.uint32), np.array([0, 3]))
    expected = [curve.multiply(n, curve.BASE) for n in (0 + 3 + 12, 1 + 4 + 13, 2 + 5 + 14)]
    assert total.encode() == b"".join(curve.ristretto_encode(p) for p in expected)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 40), st.binary(min_size=32, max_size=32))
def test_hash_and_multiply_agree_on_every_kernel(n, scalar):
    uniform = drawn(48 * n)
    uniform += b"\xff" * 48 + bytes(16) + (2**255 - 20).to_bytes(32, "big")
    kernels = [Engine(name, 1).curve() for name in KERNELS]
    mapped = {kernel.map_to_curve(uniform) for kernel in kernels}
    assert len(mapped) == 1
    (points,) = mapped
    assert len({kernel.multiply(points, scalar) for kernel in kernels}) == 1


@pytest.mark.parametrize("zero", [0, 2**255 - 19, 2**256 - 38])
def test_the_one_hash_that_maps_to_a_point_of_small_order_is_refused(kernel, zero):
    points = kernel.map_to_curve(drawn(48) + zero.to_bytes(48, "big"))
    assert points[32:] == bytes(32)
    with pytest.raises(InvalidPoint, match="small order"):
        kernel.multiply(points, drawn(32))


@pytest.mark.parametrize("encoding", BAD_ENCODINGS)
def test_bad_elements_are_refused_with_their_row(kernel, encoding):
    public = operations(kernel)
    sent = bytearray(public.encrypt(*values(20)))
    for part in range(3):
        broken = bytearray(sent)
        at = 96 * 17 + 32 * part
        broken[at : at + 32] = bytes.fromhex(encoding)
        with pytest.raises(InvalidPoint, match="ciphertext 17 "):
            public.load(bytes(broken))
        with pytest.raises(InvalidPoint, match="ciphertext 17 "):
            ElGamalDecryption(KEY, ValueRange(2, 20), kernel).decrypt(bytes(broken))


def test_truncated_ciphertexts_are_refused(kernel):
    public = operations(kernel)
    sent = public.encrypt(*values(2))
    for refuse in (public.load, ElGamalDecryption(KEY, ValueRange(2, 20), kernel).decrypt):
        with pytest.raises(InvalidPoint, match="96 bytes a ciphertext expected, received 191"):
            refuse(sent[:-1])


def test_no_rows_are_fine(kernel):
    public = operations(kernel)
    nothing = np.empty(0, np.int64)
    assert public.encrypt(nothing, nothing) == b""
    sums = public.histogram(public.load(b""), np.empty((0, 2), np.uint8), 3)
    assert ElGamalDecryption(KEY, ValueRange(2, 20), kernel).decrypt(sums).tolist() == [[0, 0]] * 6
    assert ElGamalDecryption(KEY, ValueRange(2, 20), kernel).decrypt(b"").shape == (0, 2)


def histogram_case(kernel, n, n_features, n_bins, seed):
    rng = np.random.default_rng(seed)
    g, h = values(n, seed)
    bins = rng.integers(0, n_bins, (n, n_features)).astype(np.uint8)
    bins[rng.random(bins.shape) < 0.5] = 1
    members = np.flatnonzero(rng.random(n) < 0.8)
    expected = np.zeros((n_features, n_bins, 2), np.int64)
    for feature in range(n_features):
        np.add.at(expected[feature, :, 0], bins[members, feature], g[members])
        np.add.at(expected[feature, :, 1], bins[members, feature], h[members])
    public = operations(kernel)
    sums = public.histogram(public.load(public.encrypt(g, h)), bins, n_bins, members)
    return ElGamalDecryption(KEY, RANGE, kernel).decrypt(sums).reshape(expected.shape), expected


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", [name for name in KERNELS if name != "gmpy2"])
def test_histograms_decrypt_to_the_plain_sums(name, workers):
    got, expected = histogram_case(Engine(name, workers).curve(), 2000, 5, 8, 4)
    np.testing.assert_array_equal(got, expected)


def test_small_histograms_decrypt_to_the_plain_sums(kernel):
    got, expected = histogram_case(kernel, 60, 2, 4, 5)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", [name for name in KERNELS if name != "gmpy2"])
def test_one_long_segment_is_summed_in_pieces(name):
    kernel = Engine(name, 1).curve()
    rows = kernel.load(bytes.fromhex("".join(MULTIPLES[1:4])))
    index = np.zeros(3000, np.uint32)
    total = rows.sum_segments(index, np.array([0, 1, 1, 2900, 3000]))
    counts = (1, 0, 2899, 100)
    expected = [curve.multiply(n * k, curve.BASE) for n in counts for k in (1, 2, 3)]
    assert total.encode() == b"".join(curve.ristretto_encode(p) for p in expected)


def test_a_response_looks_like_a_fresh_encryption(kernel):
    public = operations(kernel)
    rows = public.load(public.encrypt(*values(4)))
    index = np.arange(4, dtype=np.uint32)
    sums = rows.sum_segments(index, np.array([0, 2, 4]))
    responses = {sums.encode(), public.rerandomise(sums), public.rerandomise(sums)}
    assert len(responses) == 3
    opened = [ElGamalDecryption(KEY, RANGE, kernel).decrypt(r).tolist() for r in responses]
    assert opened[0] == opened[1] == opened[2]


def test_randomness_is_never_used_twice(kernel):
    public = operations(kernel)
    zeros = np.zeros(8, np.int64)
    sent = public.encrypt(zeros, zeros) + public.encrypt(zeros, zeros)
    assert len({sent[i : i + 32] for i in range(0, len(sent), 32)}) == 48


# The table of 36 bits takes seconds to make, and is made by the same code with every kernel.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bits"),
    [(name, b) for name in KERNELS if name != "gmpy2" for b in (0, 10, 21, 22, 30)]
    + [(KERNELS[0], 36)],
)
def test_logarithms_are_found_at_both_ends_of_the_range(name, bits):
    kernel = Engine(name, 1).curve()
    whole = ValueRange(bits, 1)
    most = whole.value_limit
    g = np.array([-most, most, 0, 1, -1, most - 1, most // 3, -(most // 7)], np.int64)
    public = operations(kernel, whole)
    pairs = np.stack([g, g[::-1]], 1)
    sent = b"".join(public.encrypt(pair[:1], pair[1:]) for pair in pairs)
    got = ElGamalDecryption(KEY, whole, kernel).decrypt(sent)
    np.testing.assert_array_equal(got, pairs)


def test_sums_beyond_the_range_are_refused(kernel):
    sent = operations(kernel, ValueRange(10, 1)).encrypt(np.array([700]), np.array([-701]))
    ElGamalDecryption(KEY, ValueRange(0, 701), kernel).decrypt(sent)
    with pytest.raises(RangeRefused, match="ciphertext 0 and 0 others"):
        ElGamalDecryption(KEY, ValueRange(0, 700), kernel).decrypt(sent)


def test_a_foreign_keys_ciphertexts_are_refused(kernel):
    foreign = ElGamalOperations(generate_private_key().public_key(), ValueRange(4, 9), kernel)
    sent = foreign.encrypt(np.arange(9), np.arange(9))
    with pytest.raises(RangeRefused, match="for another key"):
        ElGamalDecryption(KEY, ValueRange(4, 9), kernel).decrypt(sent)


@pytest.mark.parametrize(
    ("value_bits", "n_rows", "fits"),
    [(16, 1 << 24, True), (16, (1 << 24) + 1, False), (40, 1, True), (41, 1, False)],
)
def test_the_range_proof_holds_or_is_refused(value_bits, n_rows, fits):
    if fits:
        assert ValueRange(value_bits, n_rows).sum_limit <= 1 << 40
    else:
        with pytest.raises(RangeRefused, match="use Paillier"):
            ValueRange(value_bits, n_rows)


@pytest.mark.parametrize(("value_bits", "n_rows"), [(-1, 5), (3, 0)])
def test_senseless_ranges_are_refused(value_bits, n_rows):
    with pytest.raises(RangeRefused):
        ValueRange(value_bits, n_rows)


def test_values_and_rows_beyond_the_proof_are_refused_without_showing_them(kernel):
    public = operations(kernel, ValueRange(4, 3))
    fine = np.array([1, 2])
    with pytest.raises(RangeRefused, match=r"values within ±2\^4 expected") as caught:
        public.encrypt(np.array([1, 17]), fine)
    assert "17" not in str(caught.value)
    with pytest.raises(RangeRefused, match="3 rows, received 4"):
        public.encrypt(np.arange(4), np.arange(4))
    with pytest.raises(RangeRefused, match="3 rows, received 4"):
        public.load(bytes(96 * 4))
    with pytest.raises(ValueError, match="as many g as h"):
        public.encrypt(np.arange(3), fine)
    with pytest.raises(ValueError, match="int64 vectors"):
        public.encrypt(fine.astype(np.float64), fine)


def test_a_row_counts_once_in_a_node(kernel):
    public = operations(kernel)
    rows = public.load(public.encrypt(*values(3)))
    bins = np.zeros((3, 1), np.uint8)
    with pytest.raises(ValueError, match="at most once"):
        public.histogram(rows, bins, 1, np.array([1, 1]))
    with pytest.raises(ValueError, match="bins of 3 rows expected, received 2"):
        public.histogram(rows, bins[:2], 1)


def test_keys_travel_as_bytes():
    key = generate_private_key()
    assert ElGamalPrivateKey.from_bytes(key.to_bytes()) == key
    public = key.public_key()
    assert ElGamalPublicKey.from_bytes(public.to_bytes()) == public
    assert str(key.x1) not in repr(key)


@pytest.mark.parametrize(
    "data",
    [
        bytes(64),
        bytes(63),
        bytes.fromhex(MULTIPLES[1]) * 2,
        bytes.fromhex(MULTIPLES[1] + MULTIPLES[0]),
        bytes.fromhex(MULTIPLES[1] + BAD_ENCODINGS[-1]),
    ],
)
def test_unusable_public_keys_are_refused(data):
    with pytest.raises(KeyRejected, match="public key"):
        ElGamalPublicKey.from_bytes(data)


@pytest.mark.parametrize("scalars", [(0, 1), (1, 1), (1, int(curve.ORDER))])
def test_unusable_private_keys_are_refused(scalars):
    with pytest.raises(KeyRejected, match="private key"):
        ElGamalPrivateKey(*scalars)


def test_a_private_key_of_another_length_is_refused():
    with pytest.raises(KeyRejected, match="64 bytes expected, received 65"):
        ElGamalPrivateKey.from_bytes(bytes(65))


def test_kernels_that_are_not_here_are_refused():
    with pytest.raises(ValueError, match="does not run here"):
        Engine("abacus").curve()
    with pytest.raises(ValueError, match="at least one worker"):
        Engine(KERNELS[0], 0).curve()
