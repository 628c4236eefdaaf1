from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.api.federation.v1 import masking_pb2 as pb
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.sums.steps import (
    KeyOffer,
    KeyRoster,
    MaskedVector,
    PairSeeds,
    PlainVector,
    PresentSet,
    SealedShares,
    SetSignature,
    SumTotal,
    Unmasking,
)
from hedgerow.crypto.masking.fixed_point import residue_dtype
from hedgerow.crypto.vault.interface import DealtBox
from hedgerow.services.wire import codec_of
from hedgerow.services.wire.masking import PIECE_BYTES
from tests.federation.memory import again


def through(payload: Any) -> Any:
    codec = codec_of(type(payload))
    parts = list(codec.encode(payload))
    assert all(part.ByteSize() <= PIECE_BYTES + 4096 for part in parts)
    return codec.decode(again(part) for part in parts)


names = st.text(min_size=1, max_size=8).map(Silo)
values = st.dictionaries(names, st.binary(max_size=40), max_size=6)
sets = st.sets(names, max_size=5).map(lambda found: tuple(sorted(found)))
keys = st.builds(
    KeyOffer,
    st.binary(min_size=32, max_size=32),
    st.binary(),
    st.binary(),
    companions=st.lists(st.sampled_from(["a", "b", "c"])).map(tuple),
    empty=st.booleans(),
)


@given(
    payload=st.one_of(
        keys,
        st.dictionaries(names, keys, min_size=1, max_size=4).map(KeyRoster),
        sets.map(lambda silos: SealedShares({silo: DealtBox(b"x", b"y") for silo in silos})),
        values.map(PairSeeds),
        values.map(Unmasking),
        st.binary(max_size=80).map(SetSignature),
        st.builds(PresentSet, sets, values),
    )
)
def test_small_payloads_come_back_as_they_were(payload: Any) -> None:
    assert through(payload) == payload


@pytest.mark.parametrize("ring_bits", [32, 48, 64])
@pytest.mark.parametrize("n", [0, 1, 400_001])
def test_vectors_come_back_as_they_were_in_frames_of_a_mebibyte(ring_bits: int, n: int) -> None:
    rng = np.random.default_rng(n)
    residues = rng.integers(0, 1 << ring_bits, n, dtype=np.uint64)
    residues = residues.astype(residue_dtype(ring_bits))
    plain = through(PlainVector(residues, ring_bits))
    masked = through(MaskedVector(residues, ring_bits, b"c" * 32, b"sig", (Silo("x"),), b"t" * 32))
    total = through(SumTotal(residues, ring_bits, (Silo("a"), Silo("b"))))
    for payload in (plain, masked, total):
        assert payload.values.dtype == residues.dtype
        assert payload.ring_bits == ring_bits
        np.testing.assert_array_equal(payload.values, residues)
    assert (masked.commitment, masked.signature) == (b"c" * 32, b"sig")
    assert (masked.bound, masked.tag) == (("x",), b"t" * 32)
    assert total.present == ("a", "b")


def test_a_residue_takes_its_rings_width_on_the_wire() -> None:
    residues = np.zeros(100_000, dtype=np.uint64)
    sizes = {}
    for ring_bits in (32, 48, 64):
        payload = PlainVector(residues.astype(residue_dtype(ring_bits)), ring_bits)
        frames = codec_of(PlainVector).encode(payload)
        sizes[ring_bits] = sum(len(frame.SerializeToString()) for frame in frames)
        assert 0 <= sizes[ring_bits] - 100_000 * ring_bits // 8 < 40


def test_many_boxes_travel_in_several_frames() -> None:
    boxes = {Silo(f"silo-{k}"): bytes(300_000) for k in range(9)}
    shares = SealedShares({silo: DealtBox(box, b"fixed") for silo, box in boxes.items()})
    assert through(shares) == shares
    offers = {silo: KeyOffer(bytes(32), box, b"s") for silo, box in boxes.items()}
    assert through(KeyRoster(offers)) == KeyRoster(offers)


def plain(**fields: Any) -> pb.MaskingPart:
    return pb.MaskingPart(plain=pb.PlainVector(vector=pb.ResidueVector(**fields)))


KEY = pb.KeyOffer(public_key=bytes(32))
BOX = pb.DealtBox(box=b"1")


@pytest.mark.parametrize(
    ("payload", "parts", "why"),
    [
        (PlainVector, [], "received 0"),
        (PlainVector, [plain(ring_bits=40, n_values=1, data=bytes(5))], "received 40"),
        (PlainVector, [plain(ring_bits=64, n_values=2, data=bytes(8))], "received 8"),
        (PlainVector, [plain(ring_bits=64, n_values=1, data=bytes(9))], "received more"),
        (PlainVector, [plain(ring_bits=64, n_values=1 << 40)], "too long"),
        (PlainVector, [pb.MaskingPart(more=b"12345678")], "received more"),
        (PlainVector, [plain(ring_bits=64, n_values=1, data=bytes(8))] * 2, "received plain"),
        (MaskedVector, [plain(ring_bits=64, n_values=1, data=bytes(8))], "received plain"),
        (SumTotal, [pb.MaskingPart(total=pb.SumTotal())], "received 0"),
        (KeyOffer, [pb.MaskingPart(key=pb.KeyOffer(public_key=bytes(31)))], "32 bytes"),
        (KeyOffer, [], "received nothing"),
        (KeyOffer, [pb.MaskingPart(key=KEY)] * 2, "received key"),
        (KeyRoster, [], "received nothing"),
        (KeyRoster, [pb.MaskingPart(roster=pb.KeyRoster(offers={"a": KEY}))] * 2, "two values"),
        (SealedShares, [pb.MaskingPart(shares=pb.SealedShares(boxes={"a": BOX}))] * 2, "two"),
        (SealedShares, [pb.MaskingPart(signature=pb.SetSignature())], "received signature"),
        (PresentSet, [pb.MaskingPart(set=pb.PresentSet(present=["b", "a"]))], "sorted"),
        (PresentSet, [pb.MaskingPart(set=pb.PresentSet(present=["a", "a"]))], "sorted"),
        (SetSignature, [pb.MaskingPart()], "received None"),
    ],
)
def test_what_no_silo_would_send_is_rejected(
    payload: type[Any], parts: list[pb.MaskingPart], why: str
) -> None:
    with pytest.raises(OfferRejected, match=why):
        codec_of(payload).decode(iter(parts))
