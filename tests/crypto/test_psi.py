"""Private set intersection: equal to a plain intersection, for every number of parties."""

from __future__ import annotations

import hmac
import random
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.crypto.arithmetic.curve25519 import hash_uniform
from hedgerow.crypto.arithmetic.engine import Engine, available_kernels
from hedgerow.crypto.errors import InvalidPoint, PsiRefused
from hedgerow.crypto.intersection.identifiers import alignment_digest, distinct_ids, normalise_id
from hedgerow.crypto.intersection.psi import (
    PsiKind,
    PsiMessage,
    PsiParty,
    PsiPolicy,
    _random_permutation,
    n_exchanges,
    tag_bits,
)
from hedgerow.crypto.vault.blinding import LocalBlinder

NAMES = ("active", "bank", "clinic", "depot", "estate")


def parties_of(tables, **options):
    roster = NAMES[: len(tables)]
    return {
        name: PsiParty(session=b"job-1/0", name=name, roster=roster, ids=ids, **options)
        for name, ids in zip(roster, tables, strict=True)
    }


def run_in_barriers(parties):
    """Relay as the coordinator does: all messages of a step at once; returns the exchanges."""
    boxes = {name: party.start() for name, party in parties.items()}
    exchanges = 0
    transcript = []
    while any(boxes.values()):
        exchanges += 1
        mail = [message for name in boxes for message in boxes[name]]
        transcript += mail
        boxes = {name: [] for name in parties}
        for message in mail:
            boxes[message.recipient] += parties[message.recipient].receive(message)
    return exchanges, transcript


def common_ids(tables):
    return sorted(set.intersection(*(set(table) for table in tables)))


def assert_aligned(parties, tables):
    expected = common_ids(tables)
    for (_, party), table in zip(parties.items(), tables, strict=True):
        assert party.finished
        assert [table[row] for row in party.result.rows] == expected


@pytest.mark.parametrize("n_parties", [2, 3, 4, 5])
def test_every_party_gets_its_rows_of_the_common_ids_in_one_order(n_parties):
    rng = random.Random(n_parties)
    tables = [[f"id{i}" for i in rng.sample(range(60), 40)] for _ in range(n_parties)]
    parties = parties_of(tables)
    exchanges, _ = run_in_barriers(parties)
    assert exchanges == n_exchanges(n_parties)
    assert_aligned(parties, tables)


@settings(max_examples=12, deadline=None)
@given(
    st.integers(2, 4).flatmap(
        lambda n: st.tuples(
            st.lists(
                st.lists(st.integers(0, 12), min_size=1, max_size=10, unique=True),
                min_size=n,
                max_size=n,
            ),
            st.randoms(use_true_random=False),
        )
    )
)
def test_any_order_of_delivery_gives_the_plain_intersection(case):
    numbers, rng = case
    tables = [[str(i) for i in own] for own in numbers]
    parties = parties_of(tables)
    mail = deque(m for party in parties.values() for m in party.start())
    while mail:
        mail.rotate(rng.randrange(len(mail)))
        message = mail.popleft()
        mail += parties[message.recipient].receive(message)
    assert_aligned(parties, tables)


def test_sets_without_a_common_id_give_no_rows():
    tables = [["a", "b"], ["c"], ["d", "e", "f"]]
    parties = parties_of(tables)
    run_in_barriers(parties)
    assert all(party.result.rows.size == 0 for party in parties.values())


def test_duplicate_and_missing_ids_are_left_out_and_counted():
    """Of a repeated one all rows: nobody knows which is meant."""
    parties = parties_of([["x", None, " x ", "y", "", 7, "z"], ["7", "x", float("nan"), 7.0, "z"]])
    run_in_barriers(parties)
    active, bank = parties["active"].result, parties["bank"].result
    assert (active.n_missing, active.n_duplicates) == (2, 2)
    assert (bank.n_missing, bank.n_duplicates) == (1, 2)
    assert active.rows.tolist() == [6]
    assert bank.rows.tolist() == [4]


@pytest.mark.parametrize(
    ("raw", "normal"),
    [
        (" ab ", b"ab"),
        ("Ab", b"Ab"),
        ("ﬁ", b"fi"),
        ("e\u0301", "é".encode()),
        (b"12", b"12"),
        (12, b"12"),
        (np.int64(12), b"12"),
        (12.0, b"12"),
        ("007", b"007"),
        ("\u00a0", None),
        (float("nan"), None),
        (None, None),
        (b"", None),
    ],
)
def test_ids_are_normalised(raw, normal):
    assert normalise_id(raw) == normal


@pytest.mark.parametrize("raw", [1.5, True, b"\xff", float("inf"), ["x"]])
def test_values_that_are_no_ids_are_refused_without_showing_them(raw):
    with pytest.raises(ValueError, match=r"ids: expected") as caught:
        distinct_ids([raw])
    assert "1.5" not in str(caught.value)


def test_two_runs_over_the_same_ids_share_no_bytes():
    tables = [["a", "b", "c"], ["b", "c", "d"]]
    seen = []
    for _ in range(2):
        _, transcript = run_in_barriers(parties_of(tables))
        seen.append({m.payload for m in transcript if m.kind is not PsiKind.MATCHES})
    assert not seen[0] & seen[1]


def test_the_session_separates_hashes():
    def first_points(session):
        blinder = LocalBlinder(session)
        blinder._scalar[:] = bytes(range(32))
        party = PsiParty(session=session, name="a", roster=("a", "b"), ids=["x"], blinder=blinder)
        return party.start()[0].payload

    assert first_points(b"one") == first_points(b"one")
    assert first_points(b"one") != first_points(b"two")


def test_tags_are_as_short_as_forty_bits_more_than_the_pairs_need():
    tables = [[str(i) for i in range(30)], [str(i) for i in range(5)]]
    _, transcript = run_in_barriers(parties_of(tables))
    (tags,) = [m.payload for m in transcript if m.kind is PsiKind.TAGS]
    assert tag_bits(30, [5]) == 48
    assert len(tags) == 30 * 6
    assert tag_bits(2**20, [2**20]) == 80
    assert tag_bits(1, [1]) == 40


def test_the_last_byte_of_a_tag_carries_no_more_bits_than_stated():
    tables = [[str(i) for i in range(40)], [str(i) for i in range(10)]]
    _, transcript = run_in_barriers(parties_of(tables))
    (tags,) = [m.payload for m in transcript if m.kind is PsiKind.TAGS]
    assert tag_bits(40, [10]) == 49
    assert set(tags[6::7]) <= {0, 1}


def test_the_order_in_which_a_set_travels_is_random():
    ids = [str(i) for i in range(50)]
    party = parties_of([ids, ["x"]])["active"]
    party.start()
    assert sorted(party._sent_order.tolist()) == list(range(50))
    assert party._sent_order.tolist() != list(range(50))


def test_with_three_parties_the_leaders_own_tags_come_back_shuffled():
    tables = [[str(i) for i in range(64)], ["0"], ["0"]]
    parties = parties_of(tables)
    run_in_barriers(parties)
    for name in ("bank", "clinic"):
        assert sorted(parties[name]._shuffle.tolist()) == list(range(64))
        assert parties[name]._shuffle.tolist() != list(range(64))


def test_keys_are_overwritten_when_a_run_is_over():
    parties = parties_of([["a"], ["a"], ["a", "b"]])
    run_in_barriers(parties)
    for party in parties.values():
        assert bytes(party._blinder._scalar) == bytes(32)
        with pytest.raises(PsiRefused, match="has been erased"):
            party._blinder.blind_points(bytes(32))


@pytest.mark.parametrize("n_ids", [0, 4])
def test_a_set_outside_of_the_policy_is_refused_by_its_owner(n_ids):
    with pytest.raises(PsiRefused, match="the policy allows 1 to 3"):
        PsiParty(
            session=b"s",
            name="a",
            roster=("a", "b"),
            ids=[str(i) for i in range(n_ids)],
            policy=PsiPolicy(max_elements=3),
        )


def test_a_peer_whose_set_is_outside_of_the_policy_is_refused_by_name():
    strict = PsiParty(
        session=b"s", name="a", roster=("a", "b"), ids=["x"], policy=PsiPolicy(max_elements=3)
    )
    strict.start()
    loose = PsiParty(session=b"s", name="b", roster=("a", "b"), ids=list("wxyz"))
    with pytest.raises(PsiRefused, match="b has too many distinct ids"):
        strict.receive(loose.start()[0])


def started_pair():
    parties = parties_of([["x", "y"], ["y", "z"]])
    boxes = {name: party.start() for name, party in parties.items()}
    return parties, boxes["bank"][0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"payload": bytes(32)}, "small order"),
        ({"payload": (1).to_bytes(32, "little")}, "small order"),
        ({"payload": bytes(33)}, "32 bytes a point"),
        ({"payload": b""}, "too few distinct ids"),
        ({"recipient": "bank"}, "not for this party"),
        ({"owner": "nobody"}, "not for this party"),
        ({"sender": "active"}, "out of turn"),
        ({"owner": "active"}, "out of turn"),
        ({"kind": PsiKind.MATCHES}, "out of turn"),
        ({"kind": PsiKind.TAGS}, "out of turn"),
    ],
)
def test_messages_that_break_the_protocol_are_refused(change, said):
    parties, message = started_pair()
    with pytest.raises(PsiRefused, match=said):
        parties["active"].receive(replace(message, **change))


def test_a_message_is_taken_once():
    parties, message = started_pair()
    parties["active"].receive(message)
    with pytest.raises(PsiRefused, match="twice"):
        parties["active"].receive(message)


def test_a_set_is_sent_once():
    parties, _ = started_pair()
    with pytest.raises(PsiRefused, match="sent once"):
        parties["active"].start()


def test_truncated_tags_and_matches_are_refused():
    parties, of_bank = started_pair()
    active, bank = parties["active"], parties["bank"]
    assert active.receive(of_bank) == []
    with pytest.raises(PsiRefused, match=r"expected \d+ bytes of tags"):
        active.receive(PsiMessage(PsiKind.TAGS, "bank", "active", "active", bytes(5)))
    with pytest.raises(PsiRefused, match="one bit for each of 2 elements"):
        bank.receive(PsiMessage(PsiKind.MATCHES, "active", "bank", "bank", bytes(2)))
    with pytest.raises(PsiRefused, match="MATCHES before any other party's set"):
        bank.receive(PsiMessage(PsiKind.MATCHES, "active", "bank", "bank", bytes(1)))


def test_a_message_before_the_start_is_refused():
    _, message = started_pair()
    late = parties_of([["x"], ["y"]])["active"]
    with pytest.raises(PsiRefused, match="before this party has started"):
        late.receive(message)


def digest_of(ids, key=bytes(16)):
    return alignment_digest(key, distinct_ids(ids))


def test_equal_columns_have_equal_alignment_digests():
    digest = digest_of(["a", 7, " b"])
    assert digest == digest_of(["a", "7", "b"]) == digest_of(["a\n", "7", "\tb "])
    assert digest != digest_of(["a", "b", "7"])
    assert digest != digest_of(["a", 7, "b"], bytes(15) + b"\1")
    assert digest_of(["ab", "c"]) != digest_of(["a", "bc"])


def test_an_alignment_digest_is_hmac_sha256_of_the_framed_ids():
    framed = b"hedgerow row alignment v1" + b"\0\0\0\1a" + b"\0\0\0\2\xc3\xa9"
    assert digest_of(["a", "e\u0301"]) == hmac.digest(bytes(16), framed, "sha256")


def test_a_digest_and_normal_ids_are_the_same_in_slices(monkeypatch):
    mixed = [" a", "b", "e\u0301", 7, None, "c", "d ", "a", "f"]
    column = ["a", "bb", "\xe9", "c" * 300, "d", "e", "7"]
    whole, digest = distinct_ids(mixed), digest_of(column)
    for n in (1, 2, 3, 7):
        monkeypatch.setattr("hedgerow.crypto.intersection.identifiers._SLICE", n)
        found = distinct_ids(iter(mixed))
        assert (found.ids, found.rows.tolist()) == (whole.ids, whole.rows.tolist())
        assert (found.n_missing, found.n_duplicates) == (1, 2)
        assert digest_of(column) == digest


def test_an_alignment_digest_wants_a_real_key_and_an_id_of_its_own_in_every_row():
    with pytest.raises(ValueError, match="at least 16 bytes"):
        digest_of(["a"], b"short")
    for ids in (["a", None], ["a", " "], ["a", "b", "a"]):
        with pytest.raises(ValueError, match="an id of its own in every row"):
            digest_of(ids)


@pytest.mark.process  # of gmpy2
@pytest.mark.parametrize("name", available_kernels())
def test_workers_change_nothing_but_time(name):
    uniform = hash_uniform([b"%d" % i for i in range(2100)], b"tag")
    one, two = Engine(name, 1).curve(), Engine(name, 2).curve()
    points = one.map_to_curve(uniform)
    assert two.map_to_curve(uniform) == points
    assert two.multiply(points, bytes(range(32))) == one.multiply(points, bytes(range(32)))
    with pytest.raises(InvalidPoint):
        two.multiply(points + bytes(32), bytes(range(32)))


def test_a_permutation_sorts_by_all_128_bits_drawn(monkeypatch):
    drawn = [(1 << 128) - 1, (1 << 128) - 2, ((1 << 64) - 1) << 64, ((1 << 64) - 2) << 64]
    raw = b"".join(key.to_bytes(16, "little") for key in drawn)
    monkeypatch.setattr("os.urandom", lambda n: raw)
    assert _random_permutation(4).tolist() == [3, 2, 1, 0]


# --- guessed ids ---


def guesses(n_real: int, n_guesses: int) -> list[list[str]]:
    """The ids of an honest party, and guesses with all of them."""
    ids = [f"{k:07}" for k in range(n_guesses)]
    return [ids, ids[:: n_guesses // n_real][:n_real]]


RULES = {"max_ratio": 10.0, "max_common": 0.5}


@pytest.mark.parametrize("leads", [True, False])
def test_a_list_that_is_too_long_for_the_own_one_is_refused_before_it_is_answered(leads):
    guessed, own = guesses(10, 101)
    roster = ("guesser", "honest") if leads else ("honest", "guesser")
    guesser = PsiParty(session=b"s", name="guesser", roster=roster, ids=guessed)
    honest = PsiParty(session=b"s", name="honest", roster=roster, ids=own,
                      policy=PsiPolicy(**RULES))  # fmt: skip
    honest.start()
    with pytest.raises(PsiRefused, match=r"guesser has more than 10 times .* max_ids_ratio"):
        honest.receive(guesser.start()[0])
    assert not honest._full_points
    assert honest._held_points is None


@pytest.mark.parametrize("n_others", [1, 2])
@pytest.mark.parametrize("leads", [True, False])
def test_a_long_list_that_has_most_of_the_own_ids_is_named(leads, n_others):
    guessed, own = guesses(10, 41)
    tables = [guessed, own] if leads else [own, guessed]
    parties = parties_of([*tables, guessed[:40]][: n_others + 1], policy=PsiPolicy(**RULES))
    with pytest.raises(PsiRefused, match="more than 50% of this party's ids are common"):
        run_in_barriers(parties)
    if not leads:
        assert all(party.result is None for party in parties.values()), "nobody was told"


@pytest.mark.parametrize(
    ("n_real", "n_common", "n_other"),
    [(100, 100, 400), (100, 50, 1000), (100, 100, 100), (1000, 40, 100)],
)
def test_honest_lists_of_unequal_sizes_pass(n_real, n_common, n_other):
    own = [f"own {k}" for k in range(n_real)]
    other = own[:n_common] + [f"other {k}" for k in range(n_other - n_common)]
    parties = parties_of([own, other], policy=PsiPolicy(**RULES))
    run_in_barriers(parties)
    assert [len(party.result.rows) for party in parties.values()] == [n_common, n_common]
