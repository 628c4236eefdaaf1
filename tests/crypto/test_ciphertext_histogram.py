"""Encrypted histograms against plain ones, whatever the shortcuts."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.crypto.arithmetic.engine import Engine, available_kernels
from hedgerow.crypto.ciphers.ciphertext_histogram import (
    BinSums,
    CiphertextHistograms,
    cumulate,
    n_answer_ciphertexts,
    pack_answer,
    plan_groups,
    read_answer,
)
from hedgerow.crypto.ciphers.obfuscators import KeyHolderObfuscators, UniformObfuscators
from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.ciphers.paillier import KeyHolder
from hedgerow.crypto.ciphers.paillier_keys import generate_private_key
from hedgerow.crypto.errors import CiphertextRejected, HistogramRefused, PlaintextOutOfRange

KERNELS = available_kernels()


class Party:
    """Both ends of one key on one kernel."""

    def __init__(self, kernel, workers=1):
        engine = Engine(kernel, workers)
        self.key = _key()
        self.holder = KeyHolder(self.key, engine)
        self.public = self.holder.public
        self.encrypting = KeyHolderObfuscators(self.key, engine)
        self.answering = UniformObfuscators(self.key.public_key, engine)


@functools.cache
def _key():
    return generate_private_key(512, insecure_test_key=True)


@functools.cache
def party(kernel):
    return Party(kernel)


def table(seed, n_rows, n_bins, sparse=False):
    rng = np.random.default_rng(seed)
    columns = [rng.integers(0, b, n_rows) for b in n_bins]
    if sparse:
        columns = [
            np.where(rng.random(n_rows) < 0.9, b // 2, c)
            for b, c in zip(n_bins, columns, strict=True)
        ]
    dtype = np.uint8 if max(n_bins, default=0) <= 256 else np.uint16
    bins = np.array(columns, dtype).T.reshape(n_rows, len(n_bins))
    return bins, rng.normal(size=(n_rows, 1)).clip(-3, 3), rng.random((n_rows, 1))


def plain(layout, bins, n_bins, grad, hess, rows):
    q_grad, q_hess = layout.quantise(grad, hess)
    out = []
    for q in (q_grad, q_hess):
        sums = [np.zeros((b, q.shape[1]), np.int64) for b in n_bins]
        for f, feature_sums in enumerate(sums):
            np.add.at(feature_sums, bins[rows, f], q[rows])
        out.append(np.concatenate(sums))
    return out


def fit(n_rows, n_classes=1):
    return PairLayout.fit(
        n_rows=max(1, n_rows), max_abs_grad=3, max_hess=1, fraction_bits=16, n_classes=n_classes
    )


def check(who, bins, n_bins, grad, hess, rows, **options):
    layout = fit(len(bins), grad.shape[1])
    encrypted = who.holder.encrypt(layout.pack(*layout.quantise(grad, hess)), who.encrypting)
    histograms = CiphertextHistograms(who.public, encrypted, bins, n_bins)
    sums = histograms.sums(rows, **options)
    answer = pack_answer(who.public, [sums], layout, who.answering)
    assert len(answer) == n_answer_ciphertexts(sum(n_bins), layout, 512)
    result = read_answer(who.holder, answer, sum(n_bins), layout)
    for got, expected in zip(result, plain(layout, bins, n_bins, grad, hess, rows), strict=True):
        assert np.array_equal(got, expected)
    return histograms, layout, result


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("n_bins", [(4, 3, 5, 2, 7), (32,), (1, 300), (2, 2, 2, 2, 2, 2, 3)])
def test_encrypted_sums_equal_plain_sums(kernel, sparse, joint, n_bins):
    bins, grad, hess = table(1, 400, n_bins, sparse)
    rows = np.flatnonzero(np.random.default_rng(2).random(400) < 0.7)
    check(party(kernel), bins, n_bins, grad, hess, rows, joint=joint)


@given(
    seed=st.integers(0, 2**32),
    n_rows=st.integers(0, 300),
    n_bins=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    share=st.floats(0, 1),
    sparse=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_any_table_and_any_node(seed, n_rows, n_bins, share, sparse):
    bins, grad, hess = table(seed, n_rows, n_bins, sparse)
    rows = np.flatnonzero(np.random.default_rng(seed).random(n_rows) < share)
    check(party(KERNELS[0]), bins, n_bins, grad, hess, rows)


def test_several_classes_share_a_ciphertext():
    bins, _, _ = table(3, 200, (4, 6))
    rng = np.random.default_rng(0)
    grad, hess = rng.uniform(-1, 1, (200, 3)), rng.random((200, 3))
    check(party(KERNELS[0]), bins, (4, 6), grad, hess, np.arange(0, 200, 3))


def test_the_larger_child_is_derived_in_plaintext():
    n_bins = (4, 9)
    bins, grad, hess = table(4, 300, n_bins)
    who = party(KERNELS[0])
    small, rest = np.arange(0, 300, 3), np.delete(np.arange(300), np.arange(0, 300, 3))
    histograms, layout, parent = check(who, bins, n_bins, grad, hess, np.arange(300))
    answer = pack_answer(who.public, [histograms.sums(small)], layout, who.answering)
    child = read_answer(who.holder, answer, 13, layout)
    expected = plain(layout, bins, n_bins, grad, hess, rest)
    for got, whole, e in zip(child, parent, expected, strict=True):
        assert np.array_equal(whole - got, e)


def test_candidates_are_running_sums_in_the_senders_order():
    n_bins = (4, 1, 6)
    bins, grad, hess = table(5, 120, n_bins)
    who, layout = party(KERNELS[0]), fit(120)
    encrypted = who.holder.encrypt(layout.pack(*layout.quantise(grad, hess)), who.encrypting)
    histograms = CiphertextHistograms(who.public, encrypted, bins, n_bins)
    sums = histograms.sums()
    order = np.random.default_rng(0).permutation(11)[:8]
    candidates = cumulate(who.public, [sums])
    both = cumulate(who.public, [histograms.sums(np.arange(0, 120, 7)), sums])
    assert np.array_equal(both.residues[11:], candidates.residues)
    answer = pack_answer(who.public, [candidates], layout, who.answering, order)
    got = read_answer(who.holder, answer, 8, layout)
    for values, whole in zip(
        got, plain(layout, bins, n_bins, grad, hess, np.arange(120)), strict=True
    ):
        running = np.concatenate(
            [np.cumsum(whole[a:b], axis=0) for a, b in ((0, 4), (4, 5), (5, 11))]
        )
        assert np.array_equal(values, running[order])
    with pytest.raises(HistogramRefused, match="below 11"):
        pack_answer(who.public, [candidates], layout, who.answering, np.array([11]))


def test_several_nodes_travel_in_one_answer():
    n_bins = (5, 3)
    bins, grad, hess = table(6, 100, n_bins)
    who, layout = party(KERNELS[0]), fit(100)
    encrypted = who.holder.encrypt(layout.pack(*layout.quantise(grad, hess)), who.encrypting)
    histograms = CiphertextHistograms(who.public, encrypted, bins, n_bins)
    nodes = [np.arange(30), np.arange(30, 100), np.arange(0)]
    answer = pack_answer(who.public, [histograms.sums(r) for r in nodes], layout, who.answering)
    grad_sums, _ = read_answer(who.holder, answer, 24, layout)
    expected = [plain(layout, bins, n_bins, grad, hess, rows)[0] for rows in nodes]
    assert np.array_equal(grad_sums, np.concatenate(expected))
    empty = pack_answer(
        who.public, [BinSums(histograms.sums().residues[:0], ())], layout, who.answering
    )
    assert read_answer(who.holder, empty, 0, layout)[0].shape == (0, 1)


def test_the_same_answer_is_never_sent_twice():
    n_bins = (3,)
    bins, grad, hess = table(7, 50, n_bins)
    who, layout = party(KERNELS[0]), fit(50)
    encrypted = who.holder.encrypt(layout.pack(*layout.quantise(grad, hess)), who.encrypting)
    sums = CiphertextHistograms(who.public, encrypted, bins, n_bins).sums()
    answers = [pack_answer(who.public, [sums], layout, who.answering) for _ in range(3)]
    values = [row.tobytes() for answer in answers for row in answer]
    assert len(set(values)) == len(values)


@pytest.mark.parametrize(
    "kernel",
    [pytest.param(k, marks=pytest.mark.process) if k == "gmpy2" else k for k in KERNELS],
)
def test_cores_share_a_node_without_changing_it(kernel, monkeypatch):
    monkeypatch.setattr("hedgerow.crypto.arithmetic.modular.LEAST_SHARED_WORK", 64)
    n_bins = (8, 8, 5)
    bins, grad, hess = table(8, 500, n_bins)
    check(Party(kernel, workers=2), bins, n_bins, grad, hess, np.arange(500))


def test_a_pass_over_few_rows_at_a_time_changes_nothing(monkeypatch):
    from hedgerow.crypto.ciphers import ciphertext_histogram

    monkeypatch.setattr(ciphertext_histogram, "_ROWS_A_PASS", 300)
    n_bins = (8, 5, 3, 9)
    bins, grad, hess = table(9, 250, n_bins, sparse=True)
    check(party(KERNELS[0]), bins, n_bins, grad, hess, np.arange(250), joint=False)


def test_joint_bins_are_used_only_where_they_pay():
    assert plan_groups((32, 32, 32), (0.05,) * 3, 500) == [(0,), (1,), (2,)]
    assert plan_groups((32, 32, 32), (0.05,) * 3, 20_000) == [(0, 1), (2,)]
    assert len(plan_groups((4,) * 6, (0.3,) * 6, 100_000)[0]) > 2
    # Very sparse features cost little alone: cells would cost more than rows.
    assert plan_groups((32, 32), (0.99, 0.99), 20_000) == [(0,), (1,)]
    # Features of few bins first.
    assert plan_groups((9, 256, 3, 70), (0.1,) * 4, 10**6) == [(2, 0, 3), (1,)]


def test_what_does_not_fit_together_is_refused():
    n_bins = (4, 3)
    bins, grad, hess = table(10, 20, n_bins)
    who, layout = party(KERNELS[0]), fit(20)
    encrypted = who.holder.encrypt(layout.pack(*layout.quantise(grad, hess)), who.encrypting)

    def build(rows=encrypted, b=bins, n=n_bins):
        return CiphertextHistograms(who.public, rows, b, n)

    for arguments, message in (
        ({"rows": encrypted[:19]}, "expected 20 row ciphertexts, received 19"),
        ({"n": (4,)}, "each of 2 features"),
        ({"n": (4, 0)}, "positive number of bins"),
        ({"n": (4, 2)}, "not below its feature's number of bins"),
        ({"b": bins.astype(np.int64)}, "uint8 or uint16"),
        ({"b": bins[:, 0]}, "shape"),
    ):
        with pytest.raises(HistogramRefused, match=message):
            build(**arguments)
    histograms = build()
    for rows in ([3, 3], [2, 1], [-1, 4], [0, 20]):
        with pytest.raises(HistogramRefused, match="strictly ascending row numbers below 20"):
            histograms.sums(np.array(rows))
    with pytest.raises(HistogramRefused, match="vector of row numbers"):
        histograms.sums(np.array([0.5]))
    answer = pack_answer(who.public, [histograms.sums()], layout, who.answering)
    with pytest.raises(HistogramRefused, match=f"expected {len(answer) + 1} ciphertexts"):
        read_answer(who.holder, answer, 7 + layout.slots(512), layout)
    other = generate_private_key(512, insecure_test_key=True)
    with pytest.raises(CiphertextRejected, match="obfuscators"):
        pack_answer(who.public, [histograms.sums()], layout, UniformObfuscators(other.public_key))
    with pytest.raises((CiphertextRejected, PlaintextOutOfRange)):
        read_answer(KeyHolder(other), answer, 7, layout)
