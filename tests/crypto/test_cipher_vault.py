"""The contract of a cipher vault: every scheme, in the process and over mTLS."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow.crypto.arithmetic.engine import Engine, available_kernels
from hedgerow.crypto.ciphers.key_files import KeyFolder, SealingSecret
from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.ciphers.paillier_keys import PublicKey, generate_private_key
from hedgerow.crypto.errors import (
    CiphertextRejected,
    HistogramRefused,
    InvalidPoint,
    KeyRejected,
    NothingHeld,
    PackingRefused,
    PlaintextOutOfRange,
    RangeRefused,
)
from hedgerow.crypto.intersection.psi import PsiParty, VaultBlinder
from hedgerow.crypto.vault.local_ciphers import LocalCipherVault
from hedgerow.crypto.vault.local_vault import LocalVault
from hedgerow.services.rpc import ciphers
from tests.services.rpc.crypto_servers import new_vaults

ENGINE = Engine(workers=1)
KEY_BITS = 512
N_BINS = (4, 2, 5)
NODES = [np.arange(0, 90, 2), np.arange(1, 90, 2)]


@pytest.fixture(scope="module", params=["local", pytest.param("remote", marks=pytest.mark.process)])
def factory(request):
    with new_vaults(request.param) as made:
        yield made


@pytest.fixture
def new_vault(factory):
    return lambda **options: factory(**{"engine": ENGINE, "insecure_test_keys": True, **options})


@pytest.fixture(params=["paillier", "elgamal"])
def scheme(request):
    return request.param


def table(n_rows=90, n_classes=1, bits=12):
    rng = np.random.default_rng(0)
    bins = np.stack([rng.integers(0, n, n_rows) for n in N_BINS], axis=1).astype(np.uint8)
    grad, hess = rng.uniform(-1, 1, (n_rows, n_classes)), rng.random((n_rows, n_classes))
    layout = PairLayout.fit(
        n_rows=n_rows, max_abs_grad=1, max_hess=1, fraction_bits=bits, n_classes=n_classes
    )
    return layout, bins, grad, hess


def plain(layout, bins, grad, hess, nodes):
    """Bins of nodes, one array a node and feature: (grad, hess) of shape (n_bins, n_classes)."""
    out = []
    for q in layout.quantise(grad, hess):
        sums = []
        for rows in nodes:
            for f, n in enumerate(N_BINS):
                here = np.zeros((n, q.shape[1]), np.int64)
                np.add.at(here, bins[rows, f], q[rows])
                sums.append(here)
        out.append(sums)
    return out


def in_running_order(sums, missing):
    """Running sums of each feature: forwards, then backwards where values are missing."""
    out = []
    for here, has_missing in zip(sums, missing * len(NODES), strict=True):
        present = here[:-1] if has_missing else here
        out.append(np.cumsum(present, axis=0))
        if has_missing:
            out.append(np.cumsum(present[::-1], axis=0)[::-1][1:])
    return np.concatenate(out)


def sent(new_vault, scheme, n_classes=1):
    """A tree whose rows the passive party holds."""
    active, passive = new_vault(), new_vault()
    layout, bins, grad, hess = table(n_classes=n_classes)
    public_key = active.create_cipher_key("job", KEY_BITS, scheme)
    rows = active.encrypt_gradients("job", layout, grad, hess)
    passive.hold_rows("job", public_key, layout, rows, bins, N_BINS)
    return active, passive, layout, bins, grad, hess, public_key, rows


@pytest.mark.parametrize("n_classes", [1, 15])
def test_a_tree_level_goes_through_both_vaults(new_vault, scheme, n_classes):
    active, passive = new_vault(), new_vault()
    layout, bins, grad, hess = table(n_classes=n_classes)
    public_key = active.create_cipher_key("job", KEY_BITS, scheme)
    assert active.create_cipher_key("job", KEY_BITS, scheme) == public_key
    rows = active.encrypt_gradients("job", layout, grad, hess)
    n_parts, width = {
        ("paillier", 1): (1, 128),
        ("paillier", 15): (2, 128),
        ("elgamal", 1): (1, 96),
        ("elgamal", 15): (15, 96),
    }[scheme, n_classes]
    assert [(part.shape, part.dtype) for part in rows] == [((90, width), np.uint8)] * n_parts
    passive.hold_rows("job", public_key, layout, rows, bins, N_BINS)
    sums = active.decrypt_histograms("job", layout, passive.sum_bins("job", NODES), 22)
    for got, expected in zip(sums, plain(layout, bins, grad, hess, NODES), strict=True):
        assert got.dtype == np.int64
        assert np.array_equal(got, np.concatenate(expected))


def test_running_sums_come_in_both_directions_and_any_order(new_vault, scheme):
    active, passive, layout, bins, grad, hess, *_ = sent(new_vault, scheme)
    missing = [True, False, True]
    expected = [in_running_order(q, missing) for q in plain(layout, bins, grad, hess, NODES)]
    n = len(expected[0])
    everything = passive.sum_bins("job", NODES, cumulative=True, missing=missing)
    for got, right in zip(
        active.decrypt_histograms("job", layout, everything, n), expected, strict=True
    ):
        assert np.array_equal(got, right)
    order = np.random.default_rng(1).permutation(n)[:7]
    some = passive.sum_bins("job", NODES, cumulative=True, missing=missing, order=order)
    grad_sums, hess_sums = active.decrypt_histograms("job", layout, some, 7)
    assert np.array_equal(grad_sums, expected[0][order])
    assert np.array_equal(hess_sums, expected[1][order])
    with pytest.raises(HistogramRefused, match=f"below {n}"):
        passive.sum_bins("job", NODES, cumulative=True, missing=missing, order=np.array([n]))
    with pytest.raises(HistogramRefused, match="3 flags"):
        passive.sum_bins("job", NODES, cumulative=True, missing=[True])


def test_no_nodes_and_empty_nodes_have_their_sums(new_vault, scheme):
    active, passive, layout, *_ = sent(new_vault, scheme)
    assert all(len(part) == 0 for part in passive.sum_bins("job", []))
    answer = passive.sum_bins("job", [np.empty(0, np.int64)], cumulative=True)
    grad, hess = active.decrypt_histograms("job", layout, answer, 11)
    assert not grad.any()
    assert not hess.any()


def test_the_same_sums_are_never_sent_as_the_same_bytes(new_vault, scheme):
    _, passive, *_ = sent(new_vault, scheme)
    (one,), (two,) = passive.sum_bins("job", NODES), passive.sum_bins("job", NODES)
    assert not (one == two).all(axis=1).any()


def test_more_rows_than_a_batch_come_back_in_order(new_vault):
    active = new_vault()
    n = 9_000
    layout, _, grad, hess = table(n_rows=n)
    public_key = active.create_cipher_key("job", 64)
    (rows,) = active.encrypt_gradients("job", layout, grad, hess)
    assert len(rows) == n
    one_each = np.arange(n, dtype=np.uint32)
    sums = new_vault().sum_selected(public_key, rows, one_each[::1000], np.arange(10))
    packed = [
        layout.pack(*layout.quantise(grad[i : i + 1], hess[i : i + 1]))[0]
        for i in range(0, n, 1000)
    ]
    assert active.decrypt_integers("job", sums) == packed


def test_selected_sums_serve_inference(new_vault, scheme):
    active, passive = new_vault(), new_vault()
    public_key = active.create_cipher_key("job", KEY_BITS, scheme)
    values = active.encrypt_integers("job", [5, -7, 0, 11 << 30])
    index, start = np.array([0, 1, 3, 2], np.uint32), np.array([0, 2, 2, 4])
    sums = passive.sum_selected(public_key, values, index, start)
    assert active.decrypt_integers("job", sums) == [-2, 0, 11 << 30]
    with pytest.raises(HistogramRefused, match="below 4"):
        passive.sum_selected(public_key, values, np.array([4], np.uint32), np.array([0, 1]))
    with pytest.raises(HistogramRefused, match="rise"):
        passive.sum_selected(public_key, values, index, np.array([0, 9]))


def test_a_restarted_vault_still_has_its_key(new_vault, scheme, tmp_path):
    folder = KeyFolder(tmp_path / "keys", SealingSecret("key file", bytes(range(64))))
    layout, bins, grad, hess = table()
    before = new_vault(key_folder=folder)
    public_key = before.create_cipher_key("job/1", KEY_BITS, scheme)
    rows = before.encrypt_gradients("job/1", layout, grad, hess)
    after, passive = new_vault(key_folder=folder), new_vault()
    passive.hold_rows("job/1", public_key, layout, rows, bins, N_BINS)
    grad_sums, _ = after.decrypt_histograms("job/1", layout, passive.sum_bins("job/1", NODES), 22)
    assert np.array_equal(grad_sums, np.concatenate(plain(layout, bins, grad, hess, NODES)[0]))
    assert after.create_cipher_key("job/1", KEY_BITS, scheme) == public_key
    assert [path.stat().st_mode & 0o777 for path in folder.folder.iterdir()] == [0o600]
    assert folder.folder.stat().st_mode & 0o777 == 0o700
    after.forget_session("job/1")
    assert list(folder.folder.iterdir()) == []
    with pytest.raises(NothingHeld, match="private key of session job/1"):
        after.encrypt_integers("job/1", [1])


def test_a_key_sealed_with_another_secret_is_refused(new_vault, scheme, tmp_path):
    right, wrong = (SealingSecret("key file", value * 32) for value in (b"a", b"x"))
    new_vault(key_folder=KeyFolder(tmp_path, right)).create_cipher_key("job", KEY_BITS, scheme)
    other = new_vault(key_folder=KeyFolder(tmp_path, wrong))
    with pytest.raises(KeyRejected, match="wrong key file"):
        other.create_cipher_key("job", KEY_BITS, scheme)


def test_a_session_keeps_to_its_scheme(new_vault, scheme):
    vault = new_vault()
    vault.create_cipher_key("job", KEY_BITS, scheme)
    other = {"paillier": "elgamal", "elgamal": "paillier"}[scheme]
    with pytest.raises(KeyRejected, match=f"a key of {scheme}, not of {other}"):
        vault.create_cipher_key("job", KEY_BITS, other)


def test_what_is_not_held_is_said(new_vault, scheme):
    active, passive, layout, _, grad, hess, *_ = sent(new_vault, scheme)
    with pytest.raises(NothingHeld, match="private key of session other"):
        active.encrypt_gradients("other", layout, grad, hess)
    with pytest.raises(NothingHeld, match="private key of session job"):
        passive.decrypt_integers("job", np.zeros((1, 96), np.uint8))
    with pytest.raises(NothingHeld, match="row ciphertexts of session other"):
        passive.sum_bins("other", NODES)
    passive.forget_session("job")
    with pytest.raises(NothingHeld):
        passive.sum_bins("job", NODES)


# --- bad input: what is refused says what was expected --------------------------------------


def test_a_wrong_modulus_is_refused(new_vault):
    _, passive, layout, bins, *_, rows = sent(new_vault, "paillier")
    good = generate_private_key(KEY_BITS, insecure_test_key=True)
    bad = bytearray(good.certified_bytes())
    bad[6] &= 0xFE
    with pytest.raises(KeyRejected, match="expected an odd modulus"):
        passive.hold_rows("job", bytes(bad), layout, rows, bins, N_BINS)
    with pytest.raises(KeyRejected, match="bytes of public key"):
        passive.hold_rows("job", good.public_key.to_bytes()[:-1], layout, rows, bins, N_BINS)
    with pytest.raises(KeyRejected, match="not a Paillier public key"):
        passive.hold_rows("job", b"key", layout, rows, bins, N_BINS)
    assert passive.sum_bins("job", NODES), "what was held before is still there"


@pytest.mark.parametrize("bad", [b"", bytes(64), b"\xff" * 64, bytes(63)])
def test_a_malformed_elgamal_key_is_refused(new_vault, bad):
    with pytest.raises(KeyRejected, match="public key"):
        new_vault().sum_selected(
            b"HGE1" + bad, np.zeros((0, 96), np.uint8), np.zeros(0, np.uint32), np.zeros(1, int)
        )


def test_small_keys_are_refused_outside_of_tests(new_vault):
    small = new_vault().create_cipher_key("job", KEY_BITS)
    strict = new_vault(insecure_test_keys=False)
    with pytest.raises(KeyRejected, match="2048"):
        strict.create_cipher_key("job", KEY_BITS)
    nothing = np.zeros((0, 128), np.uint8), np.zeros(0, np.uint32), np.zeros(1, np.int64)
    with pytest.raises(KeyRejected, match="2048"):
        strict.sum_selected(small, *nothing)


def test_ciphertexts_that_are_not_below_the_square_are_refused(new_vault):
    active, passive, layout, bins, _, _, public_key, rows = sent(new_vault, "paillier")
    large = [rows[0] | 255]
    with pytest.raises(CiphertextRejected, match="below n²"):
        passive.hold_rows("job", public_key, layout, large, bins, N_BINS)
    with pytest.raises(CiphertextRejected, match="below n²"):
        active.decrypt_histograms("job", layout, [large[0][:1]], 5)


@pytest.mark.parametrize("value", ["zero", "modulus"])
def test_ciphertexts_that_are_not_invertible_are_refused(new_vault, value):
    active, passive, layout, bins, _, _, public_key, rows = sent(new_vault, "paillier")
    n = PublicKey.from_certified(public_key, insecure_test_key=True).n if value == "modulus" else 0
    bad = rows[0].copy()
    bad[3] = np.frombuffer(n.to_bytes(128, "little"), np.uint8)
    with pytest.raises(CiphertextRejected, match="invertible"):
        passive.hold_rows("job", public_key, layout, [bad], bins, N_BINS)
    with pytest.raises(CiphertextRejected, match="invertible"):
        active.decrypt_integers("job", bad)


def test_bytes_that_are_no_points_are_refused(new_vault):
    active, passive, layout, bins, _, _, public_key, rows = sent(new_vault, "elgamal")
    bad = rows[0].copy()
    bad[7] = 255
    with pytest.raises(InvalidPoint, match="ciphertext 7 "):
        passive.hold_rows("job", public_key, layout, [bad], bins, N_BINS)
    with pytest.raises(InvalidPoint, match="ciphertext 7 "):
        active.decrypt_integers("job", bad)


def test_what_was_encrypted_for_another_key_is_refused(new_vault, scheme):
    active, passive, layout, *_ = sent(new_vault, scheme)
    foreign = new_vault()
    key = foreign.create_cipher_key("job", KEY_BITS, scheme)
    assert key != active.create_cipher_key("job", KEY_BITS, scheme)
    answer = passive.sum_bins("job", NODES)
    with pytest.raises((CiphertextRejected, PlaintextOutOfRange, RangeRefused)):
        foreign.decrypt_histograms("job", layout, answer, 22)


def test_truncated_ciphertexts_and_missing_rows_are_refused(new_vault, scheme):
    active, passive, layout, bins, _, _, public_key, rows = sent(new_vault, scheme)
    with pytest.raises(CiphertextRejected, match="bytes a ciphertext"):
        passive.hold_rows("job", public_key, layout, [rows[0][:, :-1]], bins, N_BINS)
    with pytest.raises(HistogramRefused, match="90 row ciphertexts, received 89"):
        passive.hold_rows("job", public_key, layout, [rows[0][:-1]], bins, N_BINS)
    with pytest.raises(HistogramRefused, match="in 1 parts, received 2"):
        passive.hold_rows("job", public_key, layout, rows * 2, bins, N_BINS)
    with pytest.raises(NothingHeld):
        passive.sum_bins("job", NODES)
    passive.hold_rows("job", public_key, layout, rows, bins, N_BINS)
    (answer,) = passive.sum_bins("job", NODES)
    with pytest.raises(HistogramRefused, match="ciphertexts for 22 bins"):
        active.decrypt_histograms("job", layout, [answer[:-1]], 22)


def test_a_wrong_number_of_bins_is_refused(new_vault, scheme):
    active, passive, layout, bins, _, _, public_key, rows = sent(new_vault, scheme)
    answer = passive.sum_bins("job", NODES)
    for n_bins in (0, 90):
        with pytest.raises(HistogramRefused, match=f"for {n_bins} bins"):
            active.decrypt_histograms("job", layout, answer, n_bins)
    with pytest.raises(HistogramRefused, match="in 1 parts, received 2"):
        active.decrypt_histograms("job", layout, answer * 2, 22)
    for n_bins in ((4, 2, 4), (4, 2), (4, 0, 5)):
        with pytest.raises(HistogramRefused, match="number of bins"):
            passive.hold_rows("job", public_key, layout, rows, bins, n_bins)
    passive.hold_rows("job", public_key, layout, rows, bins, N_BINS)
    with pytest.raises(HistogramRefused, match="ascending row numbers below 90"):
        passive.sum_bins("job", [np.array([3, 3])])
    with pytest.raises(HistogramRefused, match="ascending row numbers below 90"):
        passive.sum_bins("job", [np.array([3, 90])])


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.01, 1.01])
def test_gradients_out_of_range_are_refused_before_encryption(new_vault, scheme, value):
    vault = new_vault()
    layout, _, grad, hess = table()
    vault.create_cipher_key("job", KEY_BITS, scheme)
    bad = grad.copy()
    bad[5] = value
    with pytest.raises(PackingRefused, match="gradients are not finite or not within") as caught:
        vault.encrypt_gradients("job", layout, bad, hess)
    assert "1.01" not in str(caught.value)
    with pytest.raises(PackingRefused, match="hessians"):
        vault.encrypt_gradients("job", layout, grad, hess - 1)


def test_a_plaintext_out_of_range_is_refused(new_vault):
    vault = new_vault()
    vault.create_cipher_key("job", 64)
    with pytest.raises(PlaintextOutOfRange, match=r"expected plaintexts of at most 6[23] bits"):
        vault.encrypt_integers("job", [1 << 62, (1 << 63) - 1])
    vault.create_cipher_key("curve", scheme="elgamal")
    with pytest.raises(RangeRefused, match="40"):
        vault.encrypt_integers("curve", [1 << 41])


def test_a_range_that_logarithms_cannot_cover_is_refused(new_vault):
    vault = new_vault()
    layout, _, grad, hess = table(bits=40)
    vault.create_cipher_key("job", scheme="elgamal")
    with pytest.raises(RangeRefused, match="or use Paillier"):
        vault.encrypt_gradients("job", layout, grad, hess)


# --- intersections --------------------------------------------------------------------------


def intersected(parties):
    boxes = {name: party.start() for name, party in parties.items()}
    while any(boxes.values()):
        mail = [message for name in boxes for message in boxes[name]]
        boxes = {name: [] for name in parties}
        for message in mail:
            boxes[message.recipient] += parties[message.recipient].receive(message)
    return {name: party.result.rows.tolist() for name, party in parties.items()}


def test_parties_with_their_secrets_in_vaults_find_their_common_ids(new_vault):
    columns = {"a": ["x", "y", "z", ""], "b": ["q", "z", "x"]}
    vaults = {name: new_vault() for name in columns}
    parties = {
        name: PsiParty(
            session=b"job/psi",
            name=name,
            roster=("a", "b"),
            ids=ids,
            blinder=VaultBlinder(vaults[name], "job/psi"),
        )
        for name, ids in columns.items()
    }
    assert intersected(parties) == {"a": [0, 2], "b": [2, 1]}


def test_blinding_commutes_and_a_forgotten_secret_does_not_come_back(new_vault, monkeypatch):
    monkeypatch.setattr(ciphers, "IDS_A_FRAME", 64)  # the third frame is not full
    one, two = new_vault(), new_vault()
    ids = [b"id-%d" % i for i in range(150)] + [b""]
    there = two.blind_points("s", one.blind_identifiers("s", ids))
    assert there == one.blind_points("s", two.blind_identifiers("s", ids))
    assert len({there[i : i + 32] for i in range(0, len(there), 32)}) == len(ids)
    before = one.blind_identifiers("s", ids[:1])
    assert one.blind_identifiers("s", ids[:1]) == before
    one.forget_session("s")
    assert one.blind_identifiers("s", ids[:1]) != before


def test_points_that_would_show_something_are_refused(new_vault):
    vault = new_vault()
    with pytest.raises(InvalidPoint, match="small order"):
        vault.blind_points("s", bytes(32))
    with pytest.raises(InvalidPoint, match="32 bytes a point expected, received 33"):
        vault.blind_points("s", bytes(33))
    assert vault.blind_identifiers("s", []) == b""


@pytest.mark.parametrize("kernel", available_kernels())
@pytest.mark.parametrize("scheme", ["paillier", "elgamal"])
def test_every_kernel_reads_what_every_other_wrote(kernel, scheme):
    writer = LocalCipherVault(ENGINE, insecure_test_keys=True)
    reader = LocalCipherVault(Engine(kernel, 1), insecure_test_keys=True)
    layout, bins, grad, hess = table()
    public_key = writer.create_cipher_key("job", KEY_BITS, scheme)
    rows = writer.encrypt_gradients("job", layout, grad, hess)
    reader.hold_rows("job", public_key, layout, rows, bins, N_BINS)
    answer = reader.sum_bins("job", NODES, cumulative=True, missing=[True, False, True])
    expected = [
        in_running_order(q, [True, False, True]) for q in plain(layout, bins, grad, hess, NODES)
    ]
    sums = writer.decrypt_histograms("job", layout, answer, len(expected[0]))
    for got, right in zip(sums, expected, strict=True):
        assert np.array_equal(got, right)


def test_a_vault_shows_no_key_when_printed(tmp_path):
    folder = KeyFolder(tmp_path, SealingSecret("passphrase", b"twelve bytes or more"))
    vault = LocalVault(engine=ENGINE, insecure_test_keys=True, key_folder=folder)
    vault.create_cipher_key("job", KEY_BITS)
    vault.create_cipher_key("curve", scheme="elgamal")
    paillier = vault._owned["job"].private_key
    curve = vault._owned["curve"].private_key
    shown = repr(folder) + repr(paillier) + repr(curve) + repr(vault.__dict__)
    for secret in (paillier.p, paillier.q, curve.x1, curve.x2, "twelve bytes"):
        assert str(secret) not in shown
