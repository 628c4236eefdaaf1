"""Packing over its whole budget, and FATE's form against the published vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hedgerow.crypto.ciphers.packing import PairLayout, classes_per_ciphertext, usable_bits
from hedgerow.crypto.errors import PackingRefused, PlaintextOutOfRange
from tests.crypto.fate_packing import OffsetLayout

layouts = st.builds(
    PairLayout,
    fraction_bits=st.integers(0, 52),
    largest_grad=st.integers(1, 2**53),
    largest_hess=st.integers(1, 2**53),
    n_rows=st.integers(1, 2**24),
    n_classes=st.integers(1, 4),
)


def pack_sums(layout: PairLayout, pairs: list[tuple[int, int]]) -> int:
    """Return the plaintext of one pair a class, the first class most significant."""
    plaintext = 0
    for g, h in pairs:
        plaintext = (plaintext << layout.pair_bits) + (g << layout.hess_bits) + h
    return plaintext


def compress(layout, bins):
    packed = 0
    for plaintext in bins:
        packed = (packed << layout.bin_bits) + plaintext
    return packed


@pytest.mark.slow
@given(layout=layouts, key_bits=st.sampled_from([2048, 3072]), data=st.data())
@settings(max_examples=150, deadline=None)
def test_every_sum_within_the_budget_survives_in_every_slot(layout, key_bits, data):
    slots = layout.slots(key_bits)
    top_g, top_h = layout.n_rows * layout.largest_grad, layout.n_rows * layout.largest_hess
    count = data.draw(st.integers(1, slots))
    g_values = st.one_of(st.sampled_from([-top_g, top_g, 0, -1, 1]), st.integers(-top_g, top_g))
    h_values = st.one_of(st.sampled_from([0, 1, top_h]), st.integers(0, top_h))
    pairs = data.draw(
        st.lists(
            st.lists(
                st.tuples(g_values, h_values),
                min_size=layout.n_classes,
                max_size=layout.n_classes,
            ),
            min_size=count,
            max_size=count,
        )
    )
    packed = compress(layout, [pack_sums(layout, bin_) for bin_ in pairs])
    assert abs(packed) < 2 ** usable_bits(key_bits) // 2
    grad, hess = layout.unpack([packed], [count])
    assert [
        list(zip(g, h, strict=True)) for g, h in zip(grad.tolist(), hess.tolist(), strict=True)
    ] == pairs


@pytest.mark.parametrize("sign", [-1, 1])
def test_all_rows_at_their_bound_fill_the_budget_exactly(sign):
    layout = PairLayout.fit(n_rows=1024, max_abs_grad=1.0, max_hess=0.25, fraction_bits=24)
    plaintexts = layout.pack(
        *layout.quantise(np.full((1024, 1), float(sign)), np.full((1024, 1), 0.25))
    )
    slots = layout.slots(2048)
    grad, hess = layout.unpack([compress(layout, [sum(plaintexts)] * slots)], [slots])
    assert (grad == sign * 1024 * 2**layout.fraction_bits).all()
    assert (hess == 256 * 2**layout.fraction_bits).all()
    # One row more would not fit, and is seen.
    with pytest.raises(PlaintextOutOfRange, match="above what its rows can give"):
        layout.unpack([sum(plaintexts) + plaintexts[0]], [1])


def test_widths_are_those_of_the_design():
    def bits(fraction, rows=10**6, **bounds):
        fit = PairLayout.fit(
            n_rows=rows, max_abs_grad=1, max_hess=1, fraction_bits=fraction, **bounds
        )
        return fit.pair_bits, fit.slots(2048)

    # One bit fewer than two signed fields take: h has no sign.
    assert bits(24) == (89, 22)
    assert bits(32) == (105, 19)
    assert bits(52) == (145, 14)


@given(
    values=st.lists(st.tuples(st.floats(-4, 4), st.floats(0, 2)), min_size=1, max_size=60),
    fraction_bits=st.integers(0, 52),
)
@settings(max_examples=60, deadline=None)
def test_sums_equal_sums_of_rounded_values(values, fraction_bits):
    g, h = (np.array(x).reshape(-1, 1) for x in zip(*values, strict=True))
    layout = PairLayout.fit(n_rows=len(g), max_abs_grad=4, max_hess=2, fraction_bits=fraction_bits)
    plaintexts = layout.pack(*layout.quantise(g, h))
    grad, hess = layout.unpack([sum(plaintexts)], [1])
    scale = 2**fraction_bits
    assert grad[0, 0] == sum(int(np.rint(x * scale)) for x in g[:, 0])
    assert hess[0, 0] == sum(int(np.rint(x * scale)) for x in h[:, 0])


def test_sums_are_int64_where_they_fit_and_exact_integers_beyond():
    for fraction_bits, dtype in ((24, np.int64), (52, object)):
        layout = PairLayout.fit(
            n_rows=10**6, max_abs_grad=1, max_hess=1, fraction_bits=fraction_bits
        )
        assert layout.unpack([0], [2])[0].dtype == dtype


BAD = [math.nan, math.inf, -math.inf, 1.0001, -1.0001]


@pytest.mark.parametrize("bad", BAD)
def test_gradients_out_of_bounds_are_refused_without_being_told(bad):
    layout = PairLayout.fit(n_rows=10, max_abs_grad=1, max_hess=1)
    good = np.full((3, 1), 0.5)
    spoilt = good.copy()
    spoilt[1] = bad
    for g, h, name in ((spoilt, good, "gradients"), (good, spoilt, "hessians")):
        with pytest.raises(PackingRefused, match=rf"\b{name}\b") as refusal:
            layout.quantise(g, h)
        assert "1.0001" not in str(refusal.value)
    with pytest.raises(PackingRefused, match="hessians"):
        layout.quantise(good, -good)


def test_stored_values_out_of_bounds_are_refused():
    layout = PairLayout(0, 7, 7, 10)
    for g, h in ((8, 0), (-8, 0), (0, 8), (0, -1)):
        with pytest.raises(PackingRefused, match="bound"):
            layout.pack(np.array([[g]]), np.array([[h]]))


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 3), (3, 2, 1)])
def test_other_shapes_are_refused(shape):
    layout = PairLayout.fit(n_rows=10, max_abs_grad=1, max_hess=1, n_classes=2)
    with pytest.raises(PackingRefused, match="shape"):
        layout.quantise(np.zeros(shape), np.zeros(shape))
    with pytest.raises(PackingRefused, match="shape"):
        layout.pack(np.zeros(shape, np.int64), np.zeros(shape, np.int64))


@pytest.mark.parametrize(
    "bounds",
    [
        {"max_abs_grad": math.nan},
        {"max_abs_grad": 0.0},
        {"max_hess": -1.0},
        {"max_hess": math.inf},
        {"max_abs_grad": 2.0**40, "fraction_bits": 30},
        {"fraction_bits": 53},
        {"fraction_bits": -1},
        {"n_rows": 0},
        {"n_classes": 0},
    ],
)
def test_bounds_that_cannot_be_packed_are_refused(bounds):
    with pytest.raises(PackingRefused):
        PairLayout.fit(**({"n_rows": 10, "max_abs_grad": 1.0, "max_hess": 1.0} | bounds))


def test_more_classes_than_a_plaintext_holds_are_refused_or_split():
    layout = PairLayout.fit(n_rows=10**6, max_abs_grad=1, max_hess=1, n_classes=25)
    with pytest.raises(PackingRefused, match=r"25 pairs of 105 bits need 2625 bits.* 2046"):
        layout.slots(2048)
    assert classes_per_ciphertext(layout, 2048) == [19, 6]
    assert classes_per_ciphertext(PairLayout(24, 1, 1, 9, 3), 2048) == [3]
    wide = PairLayout(0, 2**61, 2**61, 2**40)
    with pytest.raises(PackingRefused, match="does not fit"):
        classes_per_ciphertext(wide, 128)
    for n_rows, n_classes in ((0, 1), (2**41, 1), (9, 0), (9, 2**17)):
        with pytest.raises(PackingRefused, match="rows and 1 to 65536 classes"):
            PairLayout(24, 1, 1, n_rows, n_classes)


def test_more_bins_than_announced_are_refused():
    layout = PairLayout.fit(n_rows=10, max_abs_grad=1, max_hess=1)
    one = pack_sums(layout, [(5, 6)])
    with pytest.raises(PlaintextOutOfRange, match="more than 1 bins"):
        layout.unpack([compress(layout, [one, one])], [1])
    with pytest.raises(PackingRefused, match="expected 2 plaintexts, received 1"):
        layout.unpack([one], [1, 1])


FATE_VECTOR = {"n_rows": 4, "min_grad": -1.0, "max_grad": 1.0, "max_hess": 1.0, "precision": 1024}


def test_fates_published_vector():
    layout = OffsetLayout.fit(**FATE_VECTOR)
    assert (layout.grad_bits, layout.hess_bits) == (14, 13)
    rows = layout.pack([0.25, -0.5], [0.1875, 0.25])
    assert rows == [10485952, 4194560]
    assert sum(rows) == 14680512
    assert layout.unpack(sum(rows), [2]) == [(-0.25, 0.4375)]


@pytest.mark.parametrize(
    ("n_rows", "widths", "pairs_1024", "pairs_2048"),
    [
        (10**3, (64, 63), 8, 16),
        (10**5, (71, 70), 7, 14),
        (10**6, (74, 73), 6, 13),
        (10**7, (78, 77), 6, 13),
    ],
)
def test_fates_published_widths(n_rows, widths, pairs_1024, pairs_2048):
    layout = OffsetLayout.fit(**(FATE_VECTOR | {"n_rows": n_rows, "precision": 2**53}))
    assert (layout.grad_bits, layout.hess_bits) == widths
    assert [usable_bits(b) // layout.pair_bits for b in (1024, 2048)] == [pairs_1024, pairs_2048]


@given(
    bins=st.lists(
        st.lists(st.tuples(st.integers(-1024, 1024), st.integers(0, 1024)), min_size=0, max_size=6),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=60, deadline=None)
def test_both_forms_decode_to_the_same_sums(bins):
    n_rows = max(1, max(len(rows) for rows in bins))
    offset = OffsetLayout.fit(**(FATE_VECTOR | {"n_rows": n_rows}))
    ours = PairLayout.fit(n_rows=n_rows, max_abs_grad=1, max_hess=1, fraction_bits=10)
    assume(len(bins) <= ours.slots(2048))
    theirs_sums, our_sums = [], []
    for rows in bins:
        g = np.array([r[0] / 1024 for r in rows])
        h = np.array([r[1] / 1024 for r in rows])
        theirs_sums.append(sum(offset.pack(g, h)))
        our_sums.append(sum(ours.pack(*ours.quantise(g, h))))
    theirs = offset.unpack(offset.compress(theirs_sums), [len(rows) for rows in bins])
    grad, hess = ours.unpack([compress(ours, our_sums)], [len(bins)])
    unit = 2.0**-ours.fraction_bits
    assert theirs == list(zip(unit * grad[:, 0], unit * hess[:, 0], strict=True))


def test_offset_form_refuses_what_does_not_fit():
    layout = OffsetLayout.fit(**FATE_VECTOR)
    for g, h in ((-1.5, 0.0), (40.0, 0.0), (0.0, -0.1), (0.0, 9.0)):
        with pytest.raises(PackingRefused, match="bound"):
            layout.pack([g], [h])
    with pytest.raises(PlaintextOutOfRange, match="more than 1 slots"):
        layout.unpack(1 << 40, [1])
