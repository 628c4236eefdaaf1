"""Published vectors of the hash to the curve, of X25519 and of ristretto255."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.crypto.arithmetic import curve25519 as curve
from hedgerow.crypto.errors import InvalidPoint

DST = b"QUUX-V01-CS02-with-curve25519_XMD:SHA-512_ELL2_NU_"

# RFC 9380, appendix J.4.2: message, u, x-coordinate of Q = map_to_curve(u), x-coordinate of P = 8Q.
HASH_TO_CURVE = [
    (
        b"",
        "608d892b641f0328523802a6603427c26e55e6f27e71a91a478148d45b5093cd",
        "51125222da5e763d97f3c10fcc92ea6860b9ccbbd2eb1285728f566721c1e65b",
        "1bb913f0c9daefa0b3375378ffa534bda5526c97391952a7789eb976edfe4d08",
    ),
    (
        b"abc",
        "46f5b22494bfeaa7f232cc8d054be68561af50230234d7d1d63d1d9abeca8da5",
        "7d56d1e08cb0ccb92baf069c18c49bb5a0dcd927eff8dcf75ca921ef7f3e6eeb",
        "7c22950b7d900fa866334262fcaea47a441a578df43b894b4625c9b450f9a026",
    ),
    (
        b"abcdef0123456789",
        "235fe40c443766ce7e18111c33862d66c3b33267efa50d50f9e8e5d252a40aaa",
        "3fbe66b9c9883d79e8407150e7c2a1c8680bee496c62fabe4619a72b3cabe90f",
        "31ad08a8b0deeb2a4d8b0206ca25f567ab4e042746f792f4b7973f3ae2096c52",
    ),
    (
        b"q128_" + b"q" * 128,
        "001e92a544463bda9bd04ddbe3d6eed248f82de32f522669efc5ddce95f46f5b",
        "227e0bb89de700385d19ec40e857db6e6a3e634b1c32962f370d26f84ff19683",
        "027877759d155b1997d0d84683a313eb78bdb493271d935b622900459d52ceaa",
    ),
    (
        b"a512_" + b"a" * 512,
        "1a68a1af9f663592291af987203393f707305c7bac9c8d63d6a729bdc553dc19",
        "3bcd651ee54d5f7b6013898aab251ee8ecc0688166fce6e9548d38472f6bd196",
        "5fd892c0958d1a75f54c3182a18d286efab784e774d1e017ba2fb252998b5dc1",
    ),
]

# RFC 7748, section 5.2: scalar, u, product.
X25519 = [
    (
        "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
        "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
        "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
    ),
    (
        "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
        "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
        "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
    ),
]

# RFC 9496, appendix A.1: encodings of 0·B .. 15·B.
MULTIPLES = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "e2f2ae0a6abc4e71a884a961c500515f58e30b6aa582dd8db6a65945e08d2d76",
    "6a493210f7499cd17fecb510ae0cea23a110e8d5b901f8acadd3095c73a3b919",
    "94741f5d5d52755ece4f23f044ee27d5d1ea1e2bd196b462166b16152a9d0259",
    "da80862773358b466ffadfe0b3293ab3d9fd53c5ea6c955358f568322daf6a57",
    "e882b131016b52c1d3337080187cf768423efccbb517bb495ab812c4160ff44e",
    "f64746d3c92b13050ed8d80236a7f0007c3b3f962f5ba793d19a601ebb1df403",
    "44f53520926ec81fbd5a387845beb7df85a96a24ece18738bdcfa6a7822a176d",
    "903293d8f2287ebe10e2374dc1a53e0bc887e592699f02d077d5263cdd55601c",
    "02622ace8f7303a31cafc63f8fc48fdc16e1c8c8d234b2f0d6685282a9076031",
    "20706fd788b2720a1ed2a5dad4952b01f413bcf0e7564de8cdc816689e2db95f",
    "bce83f8ba5dd2fa572864c24ba1810f9522bc6004afe95877ac73241cafdab42",
    "e4549ee16b9aa03099ca208c67adafcafa4c3f3e4e5303de6026e3ca8ff84460",
    "aa52e000df2e16f55fb1032fc33bc42742dad6bd5a8fc0be0167436c5948501f",
    "46376b80f409b29dc2b5f6f0c52591990896e5716f41477cd30085ab7f10301e",
    "e0c418f7c8d9c4cdd7395b93ea124f3ad99021bb681dfc3302a9d99a2e53e64e",
]

# RFC 9496, appendix A.2, and the encoding of 1 with its top bit set.
BAD_ENCODINGS = [
    # not canonical
    "00ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "f3ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0100000000000000000000000000000000000000000000000000000000000080",
    # negative
    "0100000000000000000000000000000000000000000000000000000000000000",
    "01ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "ed57ffd8c914fb201471d1c3d245ce3c746fcbe63a3679d51b6a516ebebe0e20",
    "c34c4e1826e5d403b78e246e88aa051c36ccf0aafebffe137d148a2bf9104562",
    "c940e5a4404157cfb1628b108db051a8d439e1a421394ec4ebccb9ec92a8ac78",
    "47cfc5497c53dc8e61c91d17fd626ffb1c49e2bca94eed052281b510b1117a24",
    "f1c6165d33367351b0da8f6e4511010c68174a03b6581212c71c0e1d026c3c72",
    "87260f7a2f12495118360f02c26a470f450dadf34a413d21042b43b9d93e1309",
    # x² is no square
    "26948d35ca62e643e26a83177332e6b6afeb9d08e4268b650f1f5bbd8d81d371",
    "4eac077a713c57b4f4397629a4145982c661f48044dd3f96427d40b147d9742f",
    "de6a7b00deadc788eb6b6c8d20c0ae96c2f2019078fa604fee5b87d6e989ad7b",
    "bcab477be20861e01e4a0e295284146a510150d9817763caf1a6f4b422d67042",
    "2a292df7e32cababbd9de088d1d1abec9fc0440f637ed2fba145094dc14bea08",
    "f4a9e534fc0d216c44b218fa0c42d99635a0127ee2e53c712f70609649fdff22",
    "8268436f8c4126196cf64b3c7ddbda90746a378625f9813dd9b8457077256731",
    "2810e5cbc2cc4d4eece54f61c6f69758e289aa7ab440b3cbeaa21995c2f4232b",
    # x·y is negative
    "3eb858e78f5a7254d8c9731174a94f76755fd3941c0ac93735c07ba14579630e",
    "a45fdc55c76448c049a1ab33f17023edfb2be3581e9c7aade8a6125215e04220",
    "d483fe813c6ba647ebbfd3ec41adca1c6130c2beeee9d9bf065c8d151c5f396e",
    "8a2e1d30050198c65a54483123960ccc38aef6848e1ec8f5f780e8523769ba32",
    "32888462f8b486c68ad7dd9610be5192bbeaf3b443951ac1a8118419d9fa097b",
    "227142501b9d4355ccba290404bde41575b037693cef1f438c47f8fbf35d1165",
    "5c37cc491da847cfeb9281d407efc41e15144c876e0170b499a96a22ed31e01e",
    "445425117cb8c90edcbc7c1cc0e74f747f2c1efa5630a967c64f287792a48a4b",
    # y = 0
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


def expand_message_xmd(message, dst, n_bytes):
    """The expansion of RFC 9380, section 5.3.1, of at most one block."""
    suffix = dst + bytes([len(dst)])
    length = n_bytes.to_bytes(2, "big") + b"\x00"
    first = hashlib.sha512(bytes(128) + message + length + suffix).digest()
    return hashlib.sha512(first + b"\x01" + suffix).digest()[:n_bytes]


def same_element(a, b):
    """Whether two points stand for one ristretto255 element (RFC 9496, section 4.3.3)."""
    p = curve.PRIME
    return (a[0] * b[1] - a[1] * b[0]) % p == 0 or (a[1] * b[1] - a[0] * b[0]) % p == 0


# u-coordinates of order 1, 2, 4 and 8 on the curve and its twist.
SMALL_ORDER_U = [
    0,
    1,
    2**255 - 20,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
]


@pytest.mark.parametrize(("message", "u", "qx", "px"), HASH_TO_CURVE)
def test_the_hash_to_the_curve_gives_the_published_points(message, u, qx, px):
    uniform = curve.hash_uniform([message], DST)
    assert uniform == expand_message_xmd(message, DST, 48)
    assert int.from_bytes(uniform, "big") % curve.PRIME == int(u, 16)
    q = curve.map_to_curve(uniform)
    assert q[::-1].hex() == qx
    assert eight_times(int(qx, 16)) == int(px, 16)


def eight_times(u):
    """x-only doubling, three times (RFC 7748's ladder formulas, affine)."""
    p = int(curve.PRIME)
    for _ in range(3):
        denominator = 4 * u * (u * u + 486662 * u + 1) % p
        u = (u * u - 1) ** 2 * pow(denominator, -1, p) % p
    return u


def test_a_prefix_is_as_good_as_a_longer_message():
    assert curve.hash_uniform([b"b", b"c"], DST, b"a") == curve.hash_uniform([b"ab", b"ac"], DST)


def test_the_expansion_gives_the_published_bytes():
    # RFC 9380, appendix K.3.
    dst = b"QUUX-V01-CS02-with-expander-SHA512-256"
    for message, expanded in [
        (b"", "6b9a7312411d92f921c6f68ca0b6380730a1a4d982c507211a90964c394179ba"),
        (b"abc", "0da749f12fbe5483eb066a5f595055679b976e93abe9be6f0f6318bce7aca8dc"),
    ]:
        assert expand_message_xmd(message, dst, 32).hex() == expanded


@pytest.mark.parametrize("dst", [b"", b"x" * 256])
def test_a_bad_separation_tag_is_refused(dst):
    with pytest.raises(ValueError, match="1 to 255 bytes"):
        curve.hash_uniform([b"m"], dst)


@pytest.mark.parametrize(("scalar", "u", "product"), X25519)
def test_x25519_gives_the_published_products(scalar, u, product):
    got = curve.multiply_u(bytes.fromhex(u) * 2, bytes.fromhex(scalar))
    assert got == bytes.fromhex(product) * 2


@pytest.mark.parametrize("u", SMALL_ORDER_U)
def test_points_of_small_order_are_refused(u):
    with pytest.raises(InvalidPoint, match="small order"):
        curve.multiply_u(u.to_bytes(32, "little"), bytes(range(32)))


def test_multiples_of_the_base_have_the_published_encodings():
    point = curve.IDENTITY
    for encoding in MULTIPLES:
        assert curve.ristretto_encode(point).hex() == encoding
        decoded = curve.ristretto_decode(bytes.fromhex(encoding))
        assert same_element(decoded, point)
        point = curve.add(point, curve.BASE)


@pytest.mark.parametrize("encoding", BAD_ENCODINGS)
def test_bad_encodings_are_refused(encoding):
    with pytest.raises(InvalidPoint):
        curve.ristretto_decode(bytes.fromhex(encoding))


@pytest.mark.parametrize("n_bytes", [0, 31, 33])
def test_encodings_of_another_length_are_refused(n_bytes):
    with pytest.raises(InvalidPoint):
        curve.ristretto_decode(bytes(n_bytes))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**253), st.integers(0, 2**253))
def test_encodings_are_a_group_of_the_stated_order(a, b):
    p, q = curve.multiply(a, curve.BASE), curve.multiply(b, curve.BASE)
    both = curve.multiply((a + b) % curve.ORDER, curve.BASE)
    assert curve.ristretto_encode(curve.add(p, q)) == curve.ristretto_encode(both)
    assert same_element(curve.add(both, curve.negate(p)), q)
    assert curve.ristretto_encode(curve.double(p)) == curve.ristretto_encode(curve.add(p, p))


def test_all_four_points_of_an_element_encode_alike():
    # Adding a point of order four changes the point, never the element.
    four = (curve.SQRT_M1, 0, 1, 0)
    point = curve.multiply(12345, curve.BASE)
    encodings = set()
    for _ in range(4):
        encodings.add(curve.ristretto_encode(point))
        point = curve.add(point, four)
    assert len(encodings) == 1
