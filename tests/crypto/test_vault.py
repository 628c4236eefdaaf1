"""The contract of a vault: every implementation passes the same tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from hedgerow.crypto.errors import BoxInvalid, KeyRejected, VaultRefused
from hedgerow.crypto.masking import masks as masking
from hedgerow.crypto.masking import shamir
from hedgerow.crypto.masking.fixed_point import residue_dtype
from hedgerow.crypto.masking.masks import Residues
from hedgerow.crypto.vault.interface import MaskGroup, SumTicket, Vault
from tests.services.rpc.crypto_servers import new_vaults

NAMES = ("ash", "birch", "cedar", "elm", "fir")
SESSION = "job/1/0.0.0"
DIGEST = b"d" * 32
THRESHOLD = 4


@pytest.fixture(params=["local", pytest.param("remote", marks=pytest.mark.process)])
def new_vault(request: pytest.FixtureRequest) -> Iterator[Callable[[], Vault]]:
    """A factory of fresh vaults of one implementation."""
    with new_vaults(request.param) as factory:
        yield factory


@dataclass
class Grove:
    """Vaults of one group, ready to mask."""

    vaults: dict[str, Vault]
    groups: dict[str, MaskGroup]

    def ticket(self, number: int = 0, **changes: object) -> SumTicket:
        return replace(SumTicket(SESSION, number, b"view", NAMES), **changes)  # type: ignore[arg-type]

    def deal(self, first: int = 0, count: int = 2, group_key: bool = False) -> None:
        boxes = {
            name: vault.seal_shares(SESSION, first, count, NAMES, group_key)
            for name, vault in self.vaults.items()
        }
        for name, vault in self.vaults.items():
            theirs = {peer: boxes[peer][name] for peer in NAMES if peer != name}
            vault.open_shares(SESSION, first, count, theirs)


def grove_of(
    new_vault: Callable[[], Vault], names: tuple[str, ...] = NAMES, hybrid: bool = False
) -> Grove:
    vaults = {name: new_vault() for name in names}
    made = [vaults[name].create_mask_key(SESSION, hybrid) for name in names]
    keys, kem_keys = tuple(key[:32] for key in made), tuple(key[32:] for key in made if hybrid)
    threshold = THRESHOLD if len(names) == 5 else len(names)
    groups = {
        name: MaskGroup(SESSION, name, names, keys, DIGEST, threshold, kem_keys) for name in names
    }
    for name, vault in vaults.items():
        vault.join_group(groups[name])
    return Grove(vaults, groups)


@pytest.fixture
def grove(new_vault: Callable[[], Vault]) -> Grove:
    return grove_of(new_vault)


def context_of(ticket: SumTicket) -> bytes:
    return masking.sum_context(ticket.session, ticket.number, ticket.view)


def vectors(ring_bits: int = 64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    dtype = residue_dtype(ring_bits)
    return {n: rng.integers(0, 1 << 30, 50, dtype=np.uint64).astype(dtype) for n in NAMES}


def masked_by(vault: Vault, ticket: SumTicket, values: Residues, ring_bits: int = 64) -> Residues:
    masks = vault.derive_masks(ticket)
    return masking.masked(values, ring_bits, masks.add, masks.subtract)


@pytest.mark.parametrize("ring_bits", [32, 48, 64])
def test_pair_masks_cancel_in_the_sum_over_all(grove: Grove, ring_bits: int) -> None:
    ticket = grove.ticket(self_mask=False)
    plain = vectors(ring_bits)
    masked = {n: masked_by(v, ticket, plain[n], ring_bits) for n, v in grove.vaults.items()}
    np.testing.assert_array_equal(
        masking.summed(masked.values(), 50, ring_bits),
        masking.summed(plain.values(), 50, ring_bits),
    )
    for name in NAMES:
        assert not np.array_equal(masked[name], plain[name])


@pytest.mark.parametrize("lost", [(), ("birch",)])
def test_revealed_shares_and_seeds_take_the_masks_off(grove: Grove, lost: tuple[str, ...]) -> None:
    grove.deal()
    plain = vectors()
    ticket = grove.ticket(1)
    masked, proofs = {}, {}
    for name, vault in grove.vaults.items():
        masks = vault.derive_masks(ticket)
        masked[name] = masking.masked(plain[name], 64, masks.add, masks.subtract)
        proofs[name] = masks.commitment
    present = tuple(n for n in NAMES if n not in lost)
    statement = masking.set_statement(DIGEST, context_of(ticket), NAMES, present)
    left_over, shares = [], {}
    for at, name in enumerate(NAMES):
        if name in lost:
            continue
        vault = grove.vaults[name]
        assert vault.endorse(SESSION, 1, present) == statement
        seeds = vault.reveal_pair_seeds(SESSION, 1, present)
        assert tuple(seeds) == lost
        left_over += [(at, NAMES.index(peer), seed) for peer, seed in seeds.items()]
        shares[at] = vault.reveal_shares(SESSION, 1, present).shares
        assert tuple(shares[at]) == present
    self_seeds = []
    for name in present:
        secret = shamir.restore({at: held[name] for at, held in shares.items()}, THRESHOLD)
        assert masking.commitment(secret, context_of(ticket)) == proofs[name]
        self_seeds.append(masking.self_seed(secret, context_of(ticket)))
    total = masking.summed([masked[n] for n in present], 50, 64)
    np.testing.assert_array_equal(
        masking.unmasked(total, 64, self_seeds, left_over),
        masking.summed([plain[n] for n in present], 50, 64),
    )


def test_a_set_endorsed_with_the_masks_is_as_one_endorsed_by_itself(grove: Grove) -> None:
    grove.deal()
    ticket = grove.ticket()
    at_once, by_itself = grove.vaults["ash"], grove.vaults["birch"]
    statement = at_once.derive_masks(ticket, endorse=True).statement
    assert by_itself.derive_masks(ticket).statement == b""
    assert statement == by_itself.endorse(SESSION, 0, NAMES)
    assert statement == masking.set_statement(DIGEST, context_of(ticket), NAMES, NAMES)
    assert tuple(at_once.reveal_shares(SESSION, 0, NAMES).shares) == NAMES
    with pytest.raises(VaultRefused, match="no other set"):
        at_once.endorse(SESSION, 0, NAMES[:4])


def test_a_silo_never_reveals_both_a_seed_with_another_and_a_share_of_its_mask(
    grove: Grove,
) -> None:
    """By any order of requests: endorsed sets shrink, so a revealed seed's silo cannot return."""
    grove.deal()
    vault = grove.vaults["ash"]
    vault.derive_masks(grove.ticket())
    without_fir = NAMES[:4]
    vault.endorse(SESSION, 0, NAMES)
    vault.endorse(SESSION, 0, without_fir)
    assert list(vault.reveal_pair_seeds(SESSION, 0, without_fir)) == ["fir"]
    with pytest.raises(VaultRefused, match="only shrink"):
        vault.endorse(SESSION, 0, NAMES)
    with pytest.raises(VaultRefused, match="endorsed last"):
        vault.reveal_shares(SESSION, 0, NAMES)
    assert "fir" not in vault.reveal_shares(SESSION, 0, without_fir).shares
    with pytest.raises(VaultRefused, match="no pair seed"):
        vault.reveal_pair_seeds(SESSION, 0, without_fir)


def test_after_the_shares_nothing_else_of_a_sum_is_endorsed_or_revealed(grove: Grove) -> None:
    grove.deal()
    vault = grove.vaults["ash"]
    vault.derive_masks(grove.ticket())
    vault.endorse(SESSION, 0, NAMES)
    first = vault.reveal_shares(SESSION, 0, NAMES)
    with pytest.raises(VaultRefused, match="has been unmasked"):
        vault.endorse(SESSION, 0, NAMES[:4])
    with pytest.raises(VaultRefused, match="no pair seed"):
        vault.reveal_pair_seeds(SESSION, 0, NAMES)
    assert vault.reveal_shares(SESSION, 0, NAMES) == first


def test_nothing_is_revealed_of_a_set_that_was_not_endorsed(grove: Grove) -> None:
    grove.deal()
    vault = grove.vaults["cedar"]
    vault.derive_masks(grove.ticket())
    with pytest.raises(VaultRefused):
        vault.reveal_shares(SESSION, 0, NAMES)
    with pytest.raises(VaultRefused):
        vault.reveal_shares(SESSION, 0, ())
    with pytest.raises(VaultRefused):
        vault.reveal_pair_seeds(SESSION, 0, NAMES)
    with pytest.raises(VaultRefused, match="not the one at hand"):
        vault.reveal_shares(SESSION, 1, NAMES)


@pytest.mark.parametrize(
    ("present", "why"),
    [
        (("ash", "birch", "elm"), "below the least"),
        (("birch", "cedar", "elm", "fir"), "leaves this silo out"),
        (("ash", "birch", "cedar", "elm", "yew"), "only shrink"),
        (("birch", "ash", "cedar", "elm"), "only shrink"),
        (("ash", "ash", "birch", "cedar", "elm"), "only shrink"),
        ((), "leaves this silo out"),
    ],
)
def test_sets_that_are_too_small_or_strange_are_not_endorsed(
    grove: Grove, present: tuple[str, ...], why: str
) -> None:
    grove.deal()
    grove.vaults["ash"].derive_masks(grove.ticket())
    with pytest.raises(VaultRefused, match=why):
        grove.vaults["ash"].endorse(SESSION, 0, present)


def test_a_sums_masks_are_given_out_once(grove: Grove) -> None:
    grove.deal()
    vault = grove.vaults["ash"]
    vault.derive_masks(grove.ticket(1))
    for number in (0, 1):
        with pytest.raises(VaultRefused, match="masked already"):
            vault.derive_masks(grove.ticket(number))


def test_participants_only_become_fewer_and_never_too_few(grove: Grove) -> None:
    grove.deal()
    vault = grove.vaults["ash"]
    vault.derive_masks(grove.ticket(0, participants=NAMES[:4]))
    with pytest.raises(VaultRefused, match="become fewer"):
        vault.derive_masks(grove.ticket(1))
    with pytest.raises(VaultRefused, match="at least 4"):
        vault.derive_masks(grove.ticket(1, participants=NAMES[:3]))
    with pytest.raises(VaultRefused, match="at least 4"):
        vault.derive_masks(grove.ticket(1, participants=NAMES[1:]))


def test_masking_needs_shares_that_were_dealt_and_deals_each_number_once(grove: Grove) -> None:
    vault = grove.vaults["ash"]
    with pytest.raises(VaultRefused, match="no shares were dealt"):
        vault.derive_masks(grove.ticket())
    grove.deal(0, 2)
    with pytest.raises(VaultRefused, match="dealt already"):
        vault.seal_shares(SESSION, 1, 2, NAMES)


def test_secrets_of_a_finished_sum_are_erased_when_the_next_is_masked(grove: Grove) -> None:
    grove.deal(0, 2)
    vault = grove.vaults["ash"]
    vault.derive_masks(grove.ticket(0))
    vault.endorse(SESSION, 0, NAMES)
    vault.derive_masks(grove.ticket(1))
    with pytest.raises(VaultRefused, match="not the one at hand"):
        vault.reveal_shares(SESSION, 0, NAMES)
    vault.forget_session(SESSION)
    with pytest.raises(VaultRefused, match="erased"):
        vault.endorse(SESSION, 1, NAMES)


def test_boxes_open_only_for_their_receiver_batch_and_sender(grove: Grove) -> None:
    boxes = grove.vaults["ash"].seal_shares(SESSION, 0, 2, NAMES)
    assert sorted(boxes) == list(NAMES)
    assert not boxes["ash"].box
    birch = grove.vaults["birch"]
    birch.open_shares(SESSION, 0, 2, {"ash": boxes["birch"]})
    for_birch, for_cedar = boxes["birch"], boxes["cedar"]
    for first, count, sender, dealt in [
        (0, 2, "ash", for_cedar),
        (2, 2, "ash", for_birch),
        (0, 1, "ash", for_birch),
        (0, 2, "cedar", for_birch),
        (0, 2, "ash", replace(for_birch, box=for_birch.box[:-1])),
        (0, 2, "ash", replace(for_birch, commitments=for_cedar.commitments)),
        (0, 2, "ash", replace(for_birch, commitments=b"")),
    ]:
        with pytest.raises(BoxInvalid, match=f"shares from {sender}"):
            birch.open_shares(SESSION, first, count, {sender: dealt})
    with pytest.raises(VaultRefused, match="not a peer"):
        birch.open_shares(SESSION, 0, 2, {"yew": boxes["birch"]})


def test_silos_that_were_shown_different_rosters_share_no_secret(
    new_vault: Callable[[], Vault],
) -> None:
    one, other = grove_of(new_vault, NAMES[:3]), new_vault()
    key = other.create_mask_key(SESSION)
    other.join_group(
        replace(
            one.groups["birch"],
            public_keys=(one.groups["ash"].public_keys[0], key, key),
            digest=b"another" + bytes(25),
        )
    )
    boxes = one.vaults["ash"].seal_shares(SESSION, 0, 1, NAMES[:3])
    with pytest.raises(BoxInvalid):
        other.open_shares(SESSION, 0, 1, {"ash": boxes["birch"]})


def test_group_masks_hide_the_sum_until_the_silos_take_them_off(grove: Grove) -> None:
    grove.deal(0, 0, group_key=True)
    ticket = grove.ticket(self_mask=False, group_mask=True)
    plain = vectors()
    masked = [masked_by(v, ticket, plain[n]) for n, v in grove.vaults.items()]
    total = masking.summed(plain.values(), 50, 64)
    blinded = masking.summed(masked, 50, 64)
    assert not np.array_equal(blinded, total)
    for vault in grove.vaults.values():
        seeds = vault.derive_group_masks(SESSION, 0, NAMES)
        np.testing.assert_array_equal(masking.masked(blinded, 64, (), seeds), total)
    with pytest.raises(VaultRefused, match="took part"):
        grove.vaults["ash"].derive_group_masks(SESSION, 0, ("yew",))


def test_silos_share_the_key_of_the_first_whose_box_arrives(grove: Grove) -> None:
    boxes = {n: v.seal_shares(SESSION, 0, 0, NAMES, True) for n, v in grove.vaults.items()}
    for name in NAMES[1:]:  # the first is lost before its boxes are there
        others = {peer: boxes[peer][name] for peer in NAMES[1:] if peer != name}
        grove.vaults[name].open_shares(SESSION, 0, 0, others)
    keys = {grove.vaults[name].derive_totals_key(SESSION) for name in NAMES[1:]}
    assert len(keys) == 1
    with pytest.raises(VaultRefused, match="never arrived"):
        grove.vaults[NAMES[0]].derive_totals_key(SESSION)


def test_group_masks_need_the_group_key(grove: Grove) -> None:
    ticket = grove.ticket(self_mask=False, group_mask=True)
    with pytest.raises(VaultRefused, match="never arrived"):
        grove.vaults["ash"].derive_masks(ticket)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"members": NAMES[:2], "threshold": 2}, "at least 3"),
        ({"threshold": 2}, "more than half"),
        ({"threshold": 6}, "more than half"),
        ({"members": NAMES[::-1]}, "sorted"),
        ({"silo": "yew"}, "does not hold"),
        ({"silo": "birch"}, "does not hold"),
    ],
)
def test_groups_that_could_not_keep_a_secret_are_refused(
    new_vault: Callable[[], Vault], change: dict[str, object], why: str
) -> None:
    vault = new_vault()
    key = vault.create_mask_key(SESSION)
    keys = (key, *(new_vault().create_mask_key(SESSION) for _ in NAMES[1:]))
    group = MaskGroup(SESSION, "ash", NAMES, keys, DIGEST, THRESHOLD)
    if "members" in change:
        change = {**change, "public_keys": keys[: len(change["members"])]}  # type: ignore[arg-type]
    with pytest.raises(VaultRefused, match=why):
        vault.join_group(replace(group, **change))  # type: ignore[arg-type]
    vault.join_group(group)
    with pytest.raises(VaultRefused, match="has its group"):
        vault.join_group(group)


def test_malformed_keys_and_unknown_sessions_are_refused(new_vault: Callable[[], Vault]) -> None:
    vault = new_vault()
    with pytest.raises(VaultRefused, match="no key was made"):
        vault.endorse("another", 0, NAMES)
    key = vault.create_mask_key(SESSION)
    with pytest.raises(VaultRefused, match="joined no group"):
        vault.seal_shares(SESSION, 0, 1, NAMES)
    with pytest.raises(KeyRejected):
        vault.join_group(MaskGroup(SESSION, "ash", NAMES[:3], (key, bytes(32), key), DIGEST, 2))


def test_roots_of_a_tree_are_equal_in_a_pair_and_of_one_set_and_one_view(grove: Grove) -> None:
    grove.deal(count=3)
    roots = {}
    for number, (view, present) in enumerate(
        [(b"view", NAMES), (b"view", NAMES[:4]), (b"other", NAMES[:4])]
    ):
        ticket = grove.ticket(number, view=view)
        for name in present:
            vault = grove.vaults[name]
            vault.derive_masks(ticket)
            vault.endorse(SESSION, number, present)
            assert vault.reveal_shares(SESSION, number, present).tree is None
            tree = vault.reveal_shares(SESSION, number, present, True).tree
            assert tree is not None
            assert tuple(tree.pairs) == tuple(peer for peer in present if peer != name)
            assert (tree.group, tree.tag_key) == ({}, b"")
            roots[number, name] = tree.pairs
        assert all(
            roots[number, a][b] == roots[number, b][a] for a in present for b in present if a != b
        )
    assert len({roots[number, "ash"]["birch"] for number in range(3)}) == 3


def test_views_are_compared_under_a_key_where_the_coordinator_is_blind(grove: Grove) -> None:
    grove.deal(group_key=True)
    tags = {
        view: {
            vault.derive_masks(grove.ticket(number, view=view, group_mask=True)).tag
            for vault in grove.vaults.values()
        }
        for number, view in enumerate((b"view", b"other"))
    }
    assert all(len(found) == 1 for found in tags.values())
    assert tags[b"view"].isdisjoint({b"view"} | tags[b"other"])


def test_noise_is_the_same_for_the_same_query_of_the_same_silo(
    new_vault: Callable[[], Vault],
) -> None:
    vault, other = new_vault(), new_vault()
    one, again, another = (vault.derive_noise(context) for context in (b"a", b"a", b"b"))
    assert one == again
    assert one.key_id == another.key_id
    assert one.seed != another.seed
    assert (len(one.key_id), len(one.seed)) == (16, 32)
    assert other.derive_noise(b"a").key_id != one.key_id
    assert one.seed.hex() not in repr(one)


@pytest.fixture
def hybrid_grove(new_vault: Callable[[], Vault]) -> Grove:
    return grove_of(new_vault, hybrid=True)


def test_masks_of_a_hybrid_group_cancel_and_later_shares_need_no_ciphertext(
    hybrid_grove: Grove,
) -> None:
    grove = hybrid_grove
    grove.deal(0, 1, group_key=True)
    boxes = grove.vaults["ash"].seal_shares(SESSION, 1, 1, NAMES)
    assert not any(dealt.ciphertext for dealt in boxes.values())
    for name in NAMES[1:]:
        grove.vaults[name].open_shares(SESSION, 1, 1, {"ash": boxes[name]})
    ticket = grove.ticket(self_mask=False)
    values = vectors()
    total = masking.summed([masked_by(grove.vaults[n], ticket, values[n]) for n in NAMES], 50, 64)
    assert (total == sum(values.values())).all()


def test_a_hybrid_group_masks_nothing_before_its_ciphertexts_are_there(hybrid_grove: Grove) -> None:
    with pytest.raises(VaultRefused, match="no ML-KEM ciphertext came from birch, cedar"):
        hybrid_grove.vaults["ash"].derive_masks(hybrid_grove.ticket(self_mask=False))


@pytest.mark.parametrize("altered", ["other", "cut", "none"])
def test_an_altered_ciphertext_names_its_sender(hybrid_grove: Grove, altered: str) -> None:
    dealt = hybrid_grove.vaults["ash"].seal_shares(SESSION, 0, 1, NAMES)["birch"]
    first = bytes([dealt.ciphertext[0] ^ 1])
    given = {
        "other": first + dealt.ciphertext[1:],
        "cut": dealt.ciphertext[:-1],
        "none": b"",
    }[altered]
    with pytest.raises(BoxInvalid, match="shares from ash"):
        hybrid_grove.vaults["birch"].open_shares(
            SESSION, 0, 1, {"ash": replace(dealt, ciphertext=given)}
        )


def test_a_ciphertext_that_nobody_agreed_on_is_refused(grove: Grove) -> None:
    dealt = grove.vaults["ash"].seal_shares(SESSION, 0, 1, NAMES)["birch"]
    assert not dealt.ciphertext
    with pytest.raises(BoxInvalid, match="not agreed on"):
        grove.vaults["birch"].open_shares(
            SESSION, 0, 1, {"ash": replace(dealt, ciphertext=bytes(1088))}
        )


def test_ml_kem_keys_are_those_of_all_members_or_none(new_vault: Callable[[], Vault]) -> None:
    grove = grove_of(new_vault, hybrid=True)
    own = grove.groups["ash"]
    for kem_keys, said in (
        (own.kem_keys[:-1], "of each member, or of none"),
        ((own.kem_keys[1], *own.kem_keys[1:]), "ML-KEM key of ash"),
        ((own.kem_keys[0], b"\xff" * 1184, *own.kem_keys[2:]), "not an ML-KEM-768 public key"),
    ):
        vault = new_vault()
        made = vault.create_mask_key(SESSION, hybrid=True)
        keys = (made[:32], *own.public_keys[1:])
        if kem_keys[0] == own.kem_keys[0]:
            kem_keys = (made[32:], *kem_keys[1:])
        with pytest.raises((VaultRefused, KeyRejected), match=said):
            vault.join_group(replace(own, public_keys=keys, kem_keys=kem_keys))
