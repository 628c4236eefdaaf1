"""A vertical job's ciphers through two vaults, restarts, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from crypto.cipher_vault import LocalCipherVault, NothingHeld
from crypto.ciphertext_histogram import HistogramRefused
from crypto.key_files import KeyFolder, SealingSecret
from crypto.modular import Engine
from crypto.packing import PackingRefused, PairLayout
from crypto.paillier import CiphertextRejected, KeyRejected

ENGINE = Engine(workers=1)
KEY_BITS = 512


def vault(**options):
    return LocalCipherVault(ENGINE, insecure_test_keys=True, **options)


def table(n_rows=90, n_classes=1):
    rng = np.random.default_rng(0)
    bins = rng.integers(0, 4, (n_rows, 3)).astype(np.uint8)
    grad, hess = rng.uniform(-1, 1, (n_rows, n_classes)), rng.random((n_rows, n_classes))
    layout = PairLayout.fit(
        n_rows=n_rows, max_abs_grad=1, max_hess=1, fraction_bits=20, n_classes=n_classes
    )
    return layout, bins, (4, 4, 4), grad, hess


def plain(layout, bins, grad, hess, nodes):
    out = []
    for q in layout.quantise(grad, hess):
        sums = np.zeros((len(nodes), bins.shape[1], 4, q.shape[1]), np.int64)
        for node, rows in enumerate(nodes):
            for f in range(bins.shape[1]):
                np.add.at(sums[node, f], bins[rows, f], q[rows])
        out.append(sums.reshape(-1, q.shape[1]))
    return out


@pytest.mark.parametrize(("n_classes", "n_parts"), [(1, 1), (4, 1), (13, 2)])
def test_a_tree_level_goes_through_both_vaults(n_classes, n_parts):
    active, passive = vault(), vault()
    layout, bins, n_bins, grad, hess = table(n_classes=n_classes)
    public_key = active.create_cipher_key("job", KEY_BITS)
    assert active.create_cipher_key("job", KEY_BITS) == public_key
    active.prepare_encryption("job", 20)
    rows = active.encrypt_gradients("job", layout, grad, hess)
    assert [part.shape for part in rows] == [(90, 128)] * n_parts
    passive.hold_rows("job", public_key, layout, rows, bins, n_bins)
    passive.prepare_encryption("job", 2)
    nodes = [np.arange(0, 90, 2), np.arange(1, 90, 2)]
    answer = passive.sum_bins("job", nodes)
    sums = active.decrypt_histograms("job", layout, answer, 24)
    for got, expected in zip(sums, plain(layout, bins, grad, hess, nodes), strict=True):
        assert np.array_equal(got, expected)
    order = np.array([3, 0, 7])
    answer = passive.sum_bins("job", nodes[:1], cumulative=True, order=order)
    got, _ = active.decrypt_histograms("job", layout, answer, 3)
    by_bin = plain(layout, bins, grad, hess, nodes[:1])[0].reshape(3, 4, -1)
    assert np.array_equal(got, np.cumsum(by_bin, axis=1).reshape(12, -1)[order])


def test_selected_sums_serve_inference():
    active, passive = vault(), vault()
    public_key = active.create_cipher_key("job", KEY_BITS)
    values = active.encrypt_integers("job", [5, -7, 0, 11])
    index, start = np.array([0, 1, 3, 2], np.uint32), np.array([0, 2, 2, 4])
    sums = passive.sum_selected(public_key, values, index, start)
    assert active.decrypt_integers("job", sums) == [-2, 0, 11]
    with pytest.raises(HistogramRefused, match="below 4"):
        passive.sum_selected(public_key, values, np.array([4], np.uint32), np.array([0, 1]))
    with pytest.raises(HistogramRefused, match="rise"):
        passive.sum_selected(public_key, values, index, np.array([0, 9]))


def test_a_restarted_vault_still_has_its_key(tmp_path):
    folder = KeyFolder(tmp_path / "keys", SealingSecret("key file", bytes(range(64))))
    layout, bins, n_bins, grad, hess = table()
    before = vault(key_folder=folder)
    public_key = before.create_cipher_key("job/1", KEY_BITS)
    rows = before.encrypt_gradients("job/1", layout, grad, hess)
    after = vault(key_folder=folder)
    passive = vault()
    passive.hold_rows("job/1", public_key, layout, rows, bins, n_bins)
    answer = passive.sum_bins("job/1", [np.arange(90)])
    grad_sums, _ = after.decrypt_histograms("job/1", layout, answer, 12)
    assert np.array_equal(grad_sums, plain(layout, bins, grad, hess, [np.arange(90)])[0])
    assert after.create_cipher_key("job/1", KEY_BITS) == public_key
    assert [path.stat().st_mode & 0o777 for path in folder.folder.iterdir()] == [0o600]
    assert folder.folder.stat().st_mode & 0o777 == 0o700
    after.forget_session("job/1")
    assert list(folder.folder.iterdir()) == []
    with pytest.raises(NothingHeld, match="private key of session job/1"):
        after.encrypt_integers("job/1", [1])


def test_a_key_sealed_with_another_secret_is_refused(tmp_path):
    vault(key_folder=KeyFolder(tmp_path, SealingSecret("key file", bytes(32)))).create_cipher_key(
        "job", KEY_BITS
    )
    other = vault(key_folder=KeyFolder(tmp_path, SealingSecret("key file", b"x" * 32)))
    with pytest.raises(KeyRejected, match="wrong key file"):
        other.create_cipher_key("job", KEY_BITS)


def test_what_is_not_held_or_does_not_fit_is_refused():
    active, passive = vault(), vault()
    layout, bins, n_bins, grad, hess = table()
    with pytest.raises(NothingHeld, match="private key"):
        active.encrypt_gradients("job", layout, grad, hess)
    with pytest.raises(NothingHeld, match="row ciphertexts"):
        passive.sum_bins("job", [np.arange(3)])
    public_key = active.create_cipher_key("job", KEY_BITS)
    with pytest.raises(PackingRefused, match="bound"):
        active.encrypt_gradients("job", layout, 2 * grad / np.abs(grad).max(), hess)
    rows = active.encrypt_gradients("job", layout, grad, hess)
    with pytest.raises(HistogramRefused, match="expected 1 ciphertexts a row for 1 classes, got 2"):
        passive.hold_rows("job", public_key, layout, rows * 2, bins, n_bins)
    with pytest.raises(CiphertextRejected, match="below n²"):
        passive.hold_rows("job", public_key, layout, [rows[0] | 255], bins, n_bins)
    passive.hold_rows("job", public_key, layout, rows, bins, n_bins)
    answer = passive.sum_bins("job", [np.arange(9)])
    with pytest.raises(HistogramRefused, match="1 parts, got 2"):
        active.decrypt_histograms("job", layout, answer * 2, 12)
    with pytest.raises(HistogramRefused, match="for 90 bins"):
        active.decrypt_histograms("job", layout, answer, 90)
    passive.forget_session("job")
    with pytest.raises(NothingHeld):
        passive.sum_bins("job", [np.arange(9)])


def test_small_keys_are_refused_outside_of_tests():
    small = vault().create_cipher_key("job", KEY_BITS)
    strict = LocalCipherVault(ENGINE)
    with pytest.raises(KeyRejected, match="2048"):
        strict.create_cipher_key("job", KEY_BITS)
    with pytest.raises(KeyRejected, match="2048"):
        strict.sum_selected(
            small, np.zeros((0, 128), np.uint8), np.zeros(0, np.uint32), np.zeros(1)
        )
