from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.crypto.masking import masks, shamir
from hedgerow.crypto.masking.fixed_point import RINGS, residue_dtype
from hedgerow.crypto.masking.keystream import CHUNK_BYTES, apply_keystreams, keystream


def counter_mode(key: bytes, counter: bytes, data: bytes) -> bytes:
    return Cipher(algorithms.AES256(key), modes.CTR(counter)).encryptor().update(data)


def test_keystream_is_aes_256_in_counter_mode_from_block_two() -> None:
    # The oracle first: SP 800-38A, F.5.5 (CTR-AES256), first block.
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = bytes(range(0xF0, 0x100))
    block = bytes.fromhex("6bc1bee22e409f96e93d7e117393172a")
    assert counter_mode(key, counter, block).hex() == "601ec313775789a5b7a7f504bbf3d228"
    n = 3 * CHUNK_BYTES + 40
    assert keystream(key, n) == counter_mode(key, bytes(15) + b"\x02", bytes(n))
    # Test case 14 of the GCM specification: zero key, zero nonce, one block of zeros.
    assert keystream(bytes(32), 16).hex() == "cea7403d4d606b6e074ec5d3baf39d18"


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("size", [0, 1, 1000, CHUNK_BYTES // 8, CHUNK_BYTES // 4 + 3])
def test_keystreams_are_little_endian_words_across_chunks(dtype: type, size: int) -> None:
    keys = [bytes([k]) * 32 for k in range(3)]
    width = np.dtype(dtype).itemsize
    words = [
        np.frombuffer(keystream(key, size * width), np.dtype(dtype).newbyteorder("<"))
        for key in keys
    ]
    into = np.arange(size, dtype=dtype)
    apply_keystreams(into, keys[:2], keys[2:])
    expected = np.arange(size, dtype=dtype) + words[0] + words[1] - words[2]
    np.testing.assert_array_equal(into, expected)


def test_keystreams_apply_to_contiguous_words_only() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        apply_keystreams(np.zeros(8, np.uint64)[::2], [bytes(32)])
    with pytest.raises(ValueError, match="uint32 or uint64"):
        apply_keystreams(np.zeros(8, np.int64), [bytes(32)])  # type: ignore[arg-type]


def entropy(seed: int) -> Callable[[int], bytes]:
    return np.random.default_rng(seed).bytes


@given(
    n_shares=st.integers(1, 12),
    data=st.data(),
    seed=st.integers(0, 2**32),
    count=st.integers(1, 5),
)
def test_any_threshold_of_shares_restores_every_secret(
    n_shares: int, data: st.DataObject, seed: int, count: int
) -> None:
    threshold = data.draw(st.integers(1, n_shares))
    source = entropy(seed)
    secrets = [shamir.random_element(source) for _ in range(count)]
    shares = shamir.split(secrets, threshold, n_shares, source)
    chosen = data.draw(st.permutations(range(n_shares)))[:threshold]
    for s, secret in enumerate(secrets):
        assert shamir.restore({k: shares[k][s] for k in chosen}, threshold) == secret


def test_shares_are_the_polynomials_values() -> None:
    secret = (5).to_bytes(32, "little")
    coefficients = iter([7, shamir.PRIME - 1])
    shares = shamir.split([secret], 3, 4, lambda n: next(coefficients).to_bytes(n, "little"))
    for k in range(4):
        x = k + 1
        value = (5 + 7 * x + (shamir.PRIME - 1) * x * x) % shamir.PRIME
        assert shares[k][0] == value.to_bytes(32, "little")


def test_fewer_shares_than_the_threshold_fit_every_secret() -> None:
    """Two of three shares: some polynomial of degree two passes through them and any secret."""
    shares = shamir.split([(1).to_bytes(32, "little")], 3, 3, entropy(1))
    known = {k: shares[k][0] for k in (0, 1)}
    with pytest.raises(ValueError, match="at least 3"):
        shamir.restore(known, 3)
    restored = {
        shamir.restore({**known, 2: value.to_bytes(32, "little")}, 3) for value in range(50)
    }
    assert len(restored) == 50


def test_what_is_no_field_element_is_refused() -> None:
    with pytest.raises(ValueError, match="element"):
        shamir.split([shamir.PRIME.to_bytes(32, "little")], 1, 1)
    with pytest.raises(ValueError, match="element"):
        shamir.restore({0: b"\xff" * 32}, 1)
    with pytest.raises(ValueError, match="sharing"):
        shamir.split([bytes(32)], 3, 2)


def test_random_elements_are_below_the_prime_even_when_the_generator_is_not() -> None:
    draws = iter([b"\xff" * 32, shamir.PRIME.to_bytes(32, "little"), bytes(32)])
    assert shamir.random_element(lambda n: next(draws)) == bytes(32)


@given(
    n_silos=st.integers(3, 7),
    lost=st.sets(st.integers(0, 6), max_size=3),
    ring_bits=st.sampled_from(RINGS),
    seed=st.integers(0, 2**32),
)
def test_a_sum_of_masked_vectors_unmasks_to_the_plain_sum_whoever_is_lost(
    n_silos: int, lost: set[int], ring_bits: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    n = 20
    dtype = residue_dtype(ring_bits)
    vectors = rng.integers(0, 1 << ring_bits, (n_silos, n), dtype=np.uint64).astype(dtype)
    pair = {(i, j): rng.bytes(32) for i in range(n_silos) for j in range(i + 1, n_silos)}
    own = [rng.bytes(32) for _ in range(n_silos)]
    masked = [
        masks.masked(
            vectors[i],
            ring_bits,
            [own[i]] + [pair[i, j] for j in range(i + 1, n_silos)],
            [pair[j, i] for j in range(i)],
        )
        for i in range(n_silos)
    ]
    present = [i for i in range(n_silos) if i not in lost]
    left_over = [(i, k, pair[min(i, k), max(i, k)]) for i in present for k in lost if k < n_silos]
    total = masks.unmasked(
        masks.summed([masked[i] for i in present], n, ring_bits),
        ring_bits,
        [own[i] for i in present],
        left_over,
    )
    np.testing.assert_array_equal(total, masks.summed([vectors[i] for i in present], n, ring_bits))
    if len(present) > 1:
        assert not np.array_equal(masked[present[0]], vectors[present[0]])


def test_every_seed_depends_on_all_of_its_context() -> None:
    contexts = [
        masks.sum_context("job/1/0", 0, b"view"),
        masks.sum_context("job/2/0", 0, b"view"),
        masks.sum_context("job/1/0", 1, b"view"),
        masks.sum_context("job/1/0", 0, b"longer view"),
    ]
    for derive in (
        masks.pair_seed,
        masks.self_seed,
        masks.commitment,
        lambda root, context: masks.group_seed(root, "silo", context),
    ):
        seeds = {derive(root, context) for root in (bytes(32), b"k" * 32) for context in contexts}
        assert len(seeds) == 8


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_a_fingerprint_tells_vectors_apart_and_is_the_same_again(dtype: type) -> None:
    values = np.arange(1, 1001, dtype=dtype)
    found = masks.fingerprint(values)
    assert found == masks.fingerprint(values.copy())
    assert len(found) == 16
    others = [values[:-1], np.append(values, dtype(0)), values[::-1].copy()]
    for place in (0, 500, 999):
        changed = values.copy()
        changed[place] ^= dtype(1)
        others.append(changed)
    assert len({found, *(masks.fingerprint(other) for other in others)}) == 1 + len(others)
