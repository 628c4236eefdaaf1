from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.crypto.errors import BoxInvalid, KeyRejected
from hedgerow.crypto.masking import key_agreement

ALICE = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
ALICE_PUBLIC = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
BOB_PUBLIC = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
SHARED = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")


def test_pair_roots_extract_the_shared_secret_of_rfc_7748() -> None:
    alice = key_agreement.new_private_key(lambda n: ALICE[:n])
    bob = X25519PrivateKey.from_private_bytes(BOB)
    assert key_agreement.public_bytes(alice) == ALICE_PUBLIC
    root = key_agreement.extract(b"salt", key_agreement.shared_secret(alice, BOB_PUBLIC))
    assert root == key_agreement.extract(b"salt", SHARED)
    assert root == key_agreement.extract(b"salt", key_agreement.shared_secret(bob, ALICE_PUBLIC))
    assert root != key_agreement.extract(
        b"another roster", key_agreement.shared_secret(bob, ALICE_PUBLIC)
    )


@pytest.mark.parametrize(
    ("salt", "info", "root", "key"),
    [
        (
            bytes(range(13)),
            bytes(range(0xF0, 0xFA)),
            "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5",
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            b"",
            b"",
            "19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04",
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ],
)
def test_hkdf_gives_the_vectors_of_rfc_5869(salt: bytes, info: bytes, root: str, key: str) -> None:
    extracted = key_agreement.extract(salt, b"\x0b" * 22)
    assert extracted.hex() == root
    assert key_agreement.expand(extracted, info, 42).hex() == key


def test_boxes_give_the_vector_of_rfc_8439() -> None:
    key = bytes(range(0x80, 0xA0))
    nonce = bytes.fromhex("070000004041424344454647")
    associated = bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
    text = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the "
        b"future, sunscreen would be it."
    )
    box = key_agreement.seal(key, text, associated, lambda n: nonce[:n])
    assert box[:12] == nonce
    assert box[12:28].hex() == "d31a8d34648e60db7b86afbc53ef7ec2"
    assert box[-16:].hex() == "1ae10b594f09e26a7e902ecbd0600691"
    assert key_agreement.open_box(key, box, associated) == text


@given(data=st.binary(max_size=50), at=st.integers(0, 77), use=st.binary(max_size=8))
def test_altered_boxes_and_boxes_for_another_use_do_not_open(
    data: bytes, at: int, use: bytes
) -> None:
    key = bytes(32)
    box = bytearray(key_agreement.seal(key, data, b"use"))
    if use != b"use":
        with pytest.raises(BoxInvalid):
            key_agreement.open_box(key, bytes(box), use)
    box[at % len(box)] ^= 1
    with pytest.raises(BoxInvalid):
        key_agreement.open_box(key, bytes(box), b"use")
    with pytest.raises(BoxInvalid):
        key_agreement.open_box(key, bytes(box[:20]), b"use")


@pytest.mark.parametrize("public", [bytes(32), b"\x01" + bytes(31), b"short"])
def test_keys_of_low_order_or_wrong_length_are_refused(public: bytes) -> None:
    with pytest.raises(KeyRejected):
        key_agreement.extract(
            b"salt", key_agreement.shared_secret(key_agreement.new_private_key(), public)
        )


field_lists = st.lists(st.one_of(st.binary(max_size=5), st.text(max_size=5), st.integers()))


@given(one=field_lists, other=field_lists)
def test_different_fields_are_encoded_differently(
    one: list[bytes | str | int], other: list[bytes | str | int]
) -> None:
    same = key_agreement.encode_fields(*one) == key_agreement.encode_fields(*other)
    assert same == (one == other)


def test_a_hybrid_root_depends_on_every_secret_name_and_ciphertext() -> None:
    given = (b"salt", (b"k" * 32, b"x" * 32), "box", "ash", "birch", b"ciphertext")
    root = key_agreement.hybrid_root(*given)
    others = [
        (b"other", *given[1:]),
        (b"salt", (b"K" * 32, b"x" * 32), *given[2:]),
        (b"salt", (b"k" * 32, b"X" * 32), *given[2:]),
        (*given[:3], "birch", "ash", given[5]),
        (*given[:5], b"another"),
    ]
    assert len({root, *(key_agreement.hybrid_root(*other) for other in others)}) == 6


def pair_of_boxes() -> tuple[key_agreement.HybridBoxes, key_agreement.HybridBoxes]:
    ash, birch = key_agreement.new_kem_key(), key_agreement.new_kem_key()
    assert ash is not None
    assert birch is not None
    publics = [key.public_key().public_bytes_raw() for key in (ash, birch)]
    return (
        key_agreement.HybridBoxes(ash, publics[1], b"salt", b"x" * 32, "ash", "birch"),
        key_agreement.HybridBoxes(birch, publics[0], b"salt", b"x" * 32, "birch", "ash"),
    )


def test_the_first_box_of_a_direction_has_its_ciphertext_in_front() -> None:
    ash, birch = pair_of_boxes()
    assert ash.sends != birch.sends
    for sender, receiver in ((ash, birch), (birch, ash)):
        first, second = sender.sent(b"first"), sender.sent(b"second")
        assert (len(first), second) == (1088 + 5, b"second")
        assert receiver.received(first) == (sender.sends, b"first")
        assert receiver.received(second) == (sender.sends, b"second")


def test_an_altered_ciphertext_gives_another_root_and_a_short_one_is_refused() -> None:
    ash, birch = pair_of_boxes()
    first = ash.sent(b"box")
    assert birch.received(bytes([first[0] ^ 1]) + first[1:])[0] != ash.sends
    _, other = pair_of_boxes()
    with pytest.raises(BoxInvalid, match="without a ciphertext"):
        other.received(first[:1000])
