"""Paillier against phe, on every kernel; keys and ciphertexts that must be refused."""

from __future__ import annotations

import functools
import random

import numpy as np
import phe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.crypto.arithmetic import modular
from hedgerow.crypto.arithmetic.engine import Engine, available_kernels
from hedgerow.crypto.ciphers import paillier
from hedgerow.crypto.ciphers.key_files import SealingSecret, open_private_key, seal_private_key
from hedgerow.crypto.ciphers.obfuscators import KeyHolderObfuscators, UniformObfuscators
from hedgerow.crypto.ciphers.paillier import KeyHolder, PublicOperations
from hedgerow.crypto.ciphers.paillier_keys import PrivateKey, PublicKey, generate_private_key
from hedgerow.crypto.errors import CiphertextRejected, KeyRejected, PlaintextOutOfRange

KERNELS = available_kernels()


@functools.cache
def private_key(bits):
    return generate_private_key(bits, insecure_test_key=True)


@functools.cache
def holder(kernel, bits=512):
    return KeyHolder(private_key(bits), Engine(kernel, workers=1))


@functools.cache
def key_holder_obfuscators(kernel, bits=512):
    return KeyHolderObfuscators(private_key(bits), Engine(kernel, workers=1))


def phe_keys(key):
    public = phe.PaillierPublicKey(key.public_key.n)
    return public, phe.PaillierPrivateKey(public, key.p, key.q)


def plaintexts_of(key, n=20):
    limit = key.public_key.largest_plaintext
    rng = random.Random(5)
    return [0, 1, -1, limit, -limit, *(rng.randint(-limit, limit) for _ in range(n - 5))]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bits", [512, 2048])
@pytest.mark.parametrize("source", [KeyHolderObfuscators, UniformObfuscators])
def test_phe_decrypts_what_we_encrypt(kernel, bits, source):
    key = private_key(bits)
    who = holder(kernel, bits)
    subject = key if source is KeyHolderObfuscators else key.public_key
    plaintexts = plaintexts_of(key, 9)
    vector = who.encrypt(plaintexts, source(subject, Engine(kernel, workers=1)))
    public, private = phe_keys(key)
    decrypted = [
        private.decrypt_encoded(phe.EncryptedNumber(public, c), phe.encoding.EncodedNumber).encoding
        for c in map(int, modular.bytes_to_ints(vector))
    ]
    assert [m - public.n if m > public.max_int else m for m in decrypted] == plaintexts
    assert who.decrypt(vector) == plaintexts


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bits", [512, 2048])
def test_we_decrypt_what_phe_encrypts_and_sums(kernel, bits):
    key = private_key(bits)
    public, _ = phe_keys(key)
    a, b = public.encrypt(1234567), public.encrypt(-98765)
    total = a + b
    values = [x.ciphertext() for x in (a, b, total)]
    vector = modular.ints_to_bytes(values, key.public_key.ciphertext_bytes)
    assert holder(kernel, bits).decrypt(vector) == [1234567, -98765, 1234567 - 98765]


@pytest.mark.parametrize("kernel", KERNELS)
def test_keys_made_by_phe_serve(kernel):
    public, private = phe.generate_paillier_keypair(n_length=512)
    key = PrivateKey(PublicKey(public.n, insecure_test_key=True), private.p, private.q)
    engine = Engine(kernel, workers=1)
    who = KeyHolder(key, engine)
    vector = who.encrypt([5, -6], KeyHolderObfuscators(key, engine))
    again = who.public.rerandomise(
        who.public.load(vector), UniformObfuscators(key.public_key, engine)
    )
    assert who.decrypt(again) == [5, -6]


def test_kernels_produce_identical_ciphertexts_from_the_same_obfuscators():
    key = private_key(2048)
    plaintexts = plaintexts_of(key)
    root = pow(3, 2**40 + 1, key.public_key.n)
    outputs = set()
    for kernel in KERNELS:
        public = holder(kernel, 2048).public
        encoded = public.encode(plaintexts)
        fixed = public.modulus.power(public.modulus.from_ints([root]), key.public_key.n)
        outputs.add(public.store(public.modulus.multiply(encoded, fixed)).tobytes())
    assert len(outputs) == 1


@pytest.mark.parametrize("kernel", KERNELS)
@given(a=st.integers(-(2**100), 2**100), b=st.integers(-(2**100), 2**100))
@settings(max_examples=10, deadline=None)
def test_sums_and_negatives_are_homomorphic(kernel, a, b):
    who = holder(kernel)
    public = who.public
    x, y = (public.load(who.encrypt([v], key_holder_obfuscators(kernel))) for v in (a, b))
    results = [public.add(x, y), public.negate(np.concatenate([x, y]))]
    decrypted = who.decrypt(public.store(np.concatenate(results)))
    assert decrypted == [a + b, -a, -b]


def test_fresh_keys_have_the_promised_form():
    for bits in (512, 2048):
        key = private_key(bits)
        assert key.public_key.bits == bits
        assert key.p.bit_length() == key.q.bit_length() == bits // 2


@pytest.mark.parametrize("bits", [1024, 2047, 2050, 8192])
def test_other_key_sizes_are_refused(bits):
    with pytest.raises(KeyRejected, match="2048, 3072, 4096"):
        generate_private_key(bits)


def test_small_public_keys_are_refused_outside_of_tests():
    small = private_key(512).public_key
    with pytest.raises(KeyRejected, match="2048 to 4096 bits, received 512"):
        PublicKey(small.n)
    with pytest.raises(KeyRejected, match="2048"):
        PublicKey.from_bytes(small.to_bytes())


def test_public_keys_survive_serialisation():
    key = private_key(2048).public_key
    again = PublicKey.from_bytes(key.to_bytes())
    assert again == key
    assert again.key_id == key.key_id


@given(data=st.binary(max_size=120), cut=st.integers(0, 2000))
@settings(max_examples=50, deadline=None)
def test_damaged_public_keys_are_refused(data, cut):
    whole = private_key(512).public_key.to_bytes()
    for bad in (data, whole[: cut % len(whole)], whole + data + b"x"):
        with pytest.raises(KeyRejected):
            PublicKey.from_bytes(bad, insecure_test_key=True)


def test_factors_must_belong_to_the_modulus():
    key = private_key(512)
    other = generate_private_key(512, insecure_test_key=True)
    with pytest.raises(KeyRejected, match="do not belong"):
        PrivateKey(key.public_key, other.p, other.q)
    with pytest.raises(KeyRejected, match="not primes"):
        PrivateKey(PublicKey(15 * 77, insecure_test_key=True), 15, 77)
    with pytest.raises(KeyRejected, match="gcd"):
        PrivateKey(PublicKey(7 * 43, insecure_test_key=True), 7, 43)


def test_private_keys_are_never_printed():
    key = private_key(512)
    text = repr(key) + str(key) + repr(KeyHolder(key, Engine("gmpy2", 1)))
    assert str(key.p) not in text
    assert str(key.q) not in text


class TestSealedKeys:
    @pytest.fixture(params=["passphrase", "key file"])
    def secret(self, request):
        return SealingSecret(request.param, b"correct horse battery staple, and more of it")

    @pytest.mark.slow
    def test_a_key_opens_with_its_secret_only(self, secret):
        key = private_key(512)
        sealed = seal_private_key(key, secret)
        assert open_private_key(sealed, secret, insecure_test_key=True) == key
        assert int(key.p).to_bytes(32, "little") not in sealed
        wrong = SealingSecret(secret.kind, secret.value + b"?")
        with pytest.raises(KeyRejected, match=f"wrong {secret.kind}, or a damaged"):
            open_private_key(sealed, wrong, insecure_test_key=True)

    def test_damage_anywhere_is_refused(self):
        secret = SealingSecret("key file", bytes(range(40)))
        sealed = seal_private_key(private_key(512), secret)
        for at in range(0, len(sealed), 5):
            bad = bytearray(sealed)
            bad[at] ^= 1
            with pytest.raises(KeyRejected):
                open_private_key(bytes(bad), secret, insecure_test_key=True)
            with pytest.raises(KeyRejected):
                open_private_key(sealed[:at], secret, insecure_test_key=True)

    def test_the_other_kind_of_secret_is_named(self):
        sealed = seal_private_key(private_key(512), SealingSecret("key file", bytes(32)))
        with pytest.raises(KeyRejected, match="sealed with a key file, received a passphrase"):
            open_private_key(sealed, SealingSecret("passphrase", b"x" * 20))

    @pytest.mark.parametrize(("kind", "n"), [("passphrase", 11), ("key file", 31), ("pin", 99)])
    def test_weak_secrets_are_refused_and_unprinted(self, kind, n):
        with pytest.raises(ValueError, match="expected"):
            SealingSecret(kind, b"s" * n)
        assert "sss" not in repr(SealingSecret("key file", b"s" * 40))


class TestRefusedCiphertexts:
    kernel = KERNELS[0]

    def public(self):
        return holder(self.kernel).public

    def vector(self, value):
        return modular.ints_to_bytes([1, value, 2], private_key(512).public_key.ciphertext_bytes)

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_not_below_n_squared(self, kernel):
        n = private_key(512).public_key.n
        for value in (n * n, n * n + 1, (1 << 1024) - 1):
            with pytest.raises(CiphertextRejected, match="below n²"):
                holder(kernel).public.load(self.vector(value))
            with pytest.raises(CiphertextRejected, match="below n²"):
                holder(kernel).decrypt(self.vector(value))
        assert len(holder(kernel).public.load(self.vector(n * n - 1))) == 3

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_not_invertible(self, kernel):
        key = private_key(512)
        for value in (0, key.p, key.q * 12345, key.public_key.n):
            with pytest.raises(CiphertextRejected, match="invertible"):
                holder(kernel).public.load(self.vector(value))
            with pytest.raises(CiphertextRejected, match="invertible"):
                holder(kernel).decrypt(self.vector(value))

    def test_of_another_width(self):
        with pytest.raises(CiphertextRejected, match="128 bytes a ciphertext"):
            self.public().load(np.ones((2, 64), np.uint8))

    def test_foreign_obfuscators(self):
        other = generate_private_key(512, insecure_test_key=True)
        with pytest.raises(CiphertextRejected, match="obfuscators of the ciphertexts' key"):
            self.public().encrypt([1], UniformObfuscators(other.public_key))


@pytest.mark.parametrize("kernel", KERNELS)
def test_plaintexts_out_of_range_are_refused_before_encryption(kernel):
    who = holder(kernel)
    limit = private_key(512).public_key.largest_plaintext
    obfuscators = key_holder_obfuscators(kernel)
    for bad in (limit + 1, -limit - 1):
        with pytest.raises(PlaintextOutOfRange, match=r"at most 51[01] bits"):
            who.encrypt([0, bad], obfuscators)


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_overflowed_sum_is_refused_at_decryption(kernel):
    who = holder(kernel)
    limit = private_key(512).public_key.largest_plaintext
    vector = who.encrypt([limit, limit], key_holder_obfuscators(kernel))
    total = who.public.modulus.product(who.public.load(vector))
    with pytest.raises(PlaintextOutOfRange):
        who.decrypt(who.public.store(total))


@pytest.mark.parametrize("kernel", KERNELS)
def test_empty_vectors_pass_through(kernel):
    who = holder(kernel)
    vector = who.encrypt([], key_holder_obfuscators(kernel))
    assert vector.shape == (0, 128)
    assert who.decrypt(vector) == []
    assert len(who.public.negate(who.public.load(vector))) == 0


@pytest.mark.parametrize("n", [1, 4, 5, 11])
def test_a_vector_encrypted_in_blocks_decrypts_in_its_order(n, monkeypatch):
    monkeypatch.setattr(paillier, "_ROWS_A_PASS", 4)
    who = holder(KERNELS[0])
    vector = who.encrypt(list(range(-3, n - 3)), key_holder_obfuscators(KERNELS[0]))
    assert len(vector) == n
    assert who.decrypt(vector) == list(range(-3, n - 3))
    assert len({row.tobytes() for row in vector}) == n


def test_public_operations_need_no_engine_named():
    assert PublicOperations(private_key(512).public_key).engine.kernel in KERNELS
