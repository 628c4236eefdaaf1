"""Sparse bins: their sums are those of the same bins in a table, whichever bin is the usual one."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from hedgerow.crypto.ciphers.bin_groups import SummedBins
from hedgerow.crypto.ciphers.sparse_bins import SparseBins
from hedgerow.crypto.errors import HistogramRefused, InvalidPoint
from hedgerow.crypto.vault.local_vault import LocalVault
from hedgerow.services.rpc import ciphers
from tests.crypto.test_cipher_vault import (
    ENGINE,
    KEY_BITS,
    N_BINS,
    NODES,
    factory,
    in_running_order,
    new_vault,
    plain,
    scheme,
    table,
)
from tests.services.rpc.crypto_servers import crypto_servers

__all__ = ["factory", "new_vault", "scheme"]
USUAL = (3, 0, 2)


def sparse(bins, usual=USUAL, n_bins=N_BINS):
    """The rows of each feature and bin but the usual one."""
    cells = [
        np.flatnonzero(bins[:, f] == b) if b != usual[f] else np.empty(0, np.int64)
        for f, n in enumerate(n_bins)
        for b in range(n)
    ]
    return SparseBins(
        len(bins),
        np.array(n_bins),
        np.array(usual),
        np.cumsum([0, *map(len, cells)]),
        np.concatenate(cells).astype(np.int32),
    )


@pytest.mark.process
def test_sums_of_sparse_bins_are_those_of_the_table(new_vault, scheme):
    active, passive = new_vault(), new_vault()
    layout, bins, grad, hess = table()
    key = active.create_cipher_key("job", KEY_BITS, scheme)
    rows = active.encrypt_gradients("job", layout, grad, hess)
    passive.hold_rows("job", key, layout, rows, sparse(bins), N_BINS)
    whole = active.decrypt_histograms("job", layout, passive.sum_bins("job", NODES), 22)
    for got, expected in zip(whole, plain(layout, bins, grad, hess, NODES), strict=True):
        assert np.array_equal(got, np.concatenate(expected))
    missing = [True, False, True]  # the usual bin of the first feature is that of missing values
    expected = [in_running_order(q, missing) for q in plain(layout, bins, grad, hess, NODES)]
    answer = passive.sum_bins("job", NODES, cumulative=True, missing=missing)
    running = active.decrypt_histograms("job", layout, answer, len(expected[0]))
    for got, right in zip(running, expected, strict=True):
        assert np.array_equal(got, right)
    nothing = passive.sum_bins("job", [np.empty(0, np.int64)])
    grad_sums, _ = active.decrypt_histograms("job", layout, nothing, 11)
    assert not grad_sums.any()


@pytest.mark.process
def test_a_vault_refuses_sums_of_few_rows_of_sparse_bins(new_vault, scheme):
    active, passive = new_vault(), new_vault()
    layout, bins, grad, hess = table()
    bins[:, 0] = 3
    bins[:4, 0] = 1
    key = active.create_cipher_key("job", KEY_BITS, scheme)
    rows = active.encrypt_gradients("job", layout, grad, hess)
    passive.hold_rows("job", key, layout, rows, sparse(bins), N_BINS, 5)
    with pytest.raises(HistogramRefused, match="differ by 5 rows"):
        passive.sum_bins("job", [np.arange(90)], cumulative=True, missing=[True, False, True])


def test_parts_of_sparse_bins_are_those_of_the_table():
    _, bins, _, _ = table()
    found = sparse(bins)
    rows = np.arange(3, 90, 4)
    assert np.array_equal(found.table(), bins)
    assert np.array_equal(found.of_rows(rows).table(), bins[rows])
    assert np.array_equal(found[10:25].table(), bins[10:25])
    for features in ([0, 2], [1], [0, 1, 2]):
        own = found.of_features(np.array(features), np.array(N_BINS)[features])
        own.check([N_BINS[f] for f in features])
        assert np.array_equal(own.table(), bins[:, features])
    groups = [SummedBins(each, N_BINS, cumulative=False).counts(rows) for each in (bins, found)]
    for a, b in zip(*groups, strict=True):
        assert np.array_equal(a, b)


def test_a_last_bin_without_rows_can_be_left_out_even_where_it_was_the_usual_one():
    bins = np.array([[3], [3], [0], [1], [1]], np.uint8)
    kept = np.array([2, 3, 4])
    found = sparse(bins, (3,), (4,)).of_rows(kept).of_features(np.array([0]), np.array([3]))
    found.check([3])
    assert np.array_equal(found.table(), bins[kept])
    assert found.usual.tolist() == [1]


@pytest.mark.process
def test_a_process_of_an_earlier_version_gets_a_table_in_words(monkeypatch, capsys):
    known, refused = ciphers._content, []

    def earlier(frame):
        if frame.WhichOneof("frame") in ("cells", "listed"):
            refused.append(frame)
            frame = type(frame)()  # a field that it does not know is none
        return known(frame)

    monkeypatch.setattr(ciphers, "_content", earlier)
    layout, bins, grad, hess = table()
    with crypto_servers() as servers:
        vault = servers.remote(LocalVault(engine=ENGINE, insecure_test_keys=True))
        key = vault.create_cipher_key("job", KEY_BITS, "elgamal")
        rows = vault.encrypt_gradients("job", layout, grad, hess)
        for _ in range(2):
            vault.hold_rows("job", key, layout, rows, sparse(bins), N_BINS)
        answer = vault.sum_bins("job", NODES)
        got = vault.decrypt_histograms("job", layout, answer, 22)
    assert len(refused) == 1, "the second table is sent dense at once"
    for found, expected in zip(got, plain(layout, bins, grad, hess, NODES), strict=True):
        assert np.array_equal(found, np.concatenate(expected))
    logged = capsys.readouterr()
    assert "the crypto process is of an earlier version" in logged.out + logged.err


@pytest.mark.process
def test_bad_ciphertexts_are_refused_without_a_dense_table():
    layout, bins, grad, hess = table()
    with crypto_servers() as servers:
        vault = servers.remote(LocalVault(engine=ENGINE, insecure_test_keys=True))
        key = vault.create_cipher_key("job", KEY_BITS, "elgamal")
        (rows,) = vault.encrypt_gradients("job", layout, grad, hess)
        bad = np.array(rows)
        bad[7] = 255
        own = sparse(bins)
        held = NeverDense(*(getattr(own, each.name) for each in fields(own)))
        with pytest.raises(InvalidPoint, match="ciphertext 7"):
            vault.hold_rows("job", key, layout, [bad], held, N_BINS)


class NeverDense(SparseBins):
    """Sparse bins of which nobody should make a table."""

    def table(self):
        raise AssertionError("a dense table was made")


@pytest.mark.process
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"usual": np.array([4, 0, 2])}, "usual bin is not below"),
        ({"usual": np.array([0, 0, 2])}, "usual bin lists rows"),
        ({"usual": np.array([3, 0])}, "each of 3 features"),
        ({"n_bins": np.array([4, 2, 6])}, "each of 3 features"),
        ({"n_rows": 40}, "ascending row numbers below 40"),
        ({"starts": np.arange(12)}, "list all rows"),
        ({"starts": np.zeros(3, np.int64)}, "list all rows"),
    ],
)
def test_sparse_bins_that_do_not_fit_are_refused(new_vault, change, said):
    active, passive = new_vault(), new_vault()
    layout, bins, grad, hess = table()
    key = active.create_cipher_key("job", KEY_BITS, "elgamal")
    rows = active.encrypt_gradients("job", layout, grad, hess)
    if "n_rows" in change:
        rows = [rows[0][:40]]
    with pytest.raises(HistogramRefused, match=said):
        passive.hold_rows("job", key, layout, rows, replace(sparse(bins), **change), N_BINS)
    twice = sparse(bins)
    twice.rows[1] = twice.rows[0]
    with pytest.raises(HistogramRefused, match="strictly ascending"):
        twice.check(N_BINS)
