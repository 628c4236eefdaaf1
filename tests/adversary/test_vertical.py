"""Attacks on vertical jobs: an active party that lies, a modulus that is none, a coordinator.

What a party is asked for it derives from the job and its own rows. A lie ends the job, and the
error names whose message it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.allowances import PartyLimits
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import DataError, InvalidJob, OfferRejected, PolicyDeclined
from hedgerow.boosting.exchange import Discloses
from hedgerow.boosting.strategies.secureboost import steps
from hedgerow.boosting.strategies.secureboost.courier import SealedChannel
from hedgerow.boosting.strategies.secureboost.passive_tree import PassiveTree
from hedgerow.boosting.strategies.secureboost.silo import participate
from hedgerow.boosting.strategies.secureboost.steps import (
    NodeDivision,
    StepName,
)
from hedgerow.client_agent.policy import Policy
from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.ciphers import paillier_keys
from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.ciphers.paillier_keys import PublicKey, generate_private_key
from hedgerow.crypto.ciphers.paillier_roles import PaillierOwner, PaillierPeer
from hedgerow.crypto.errors import HistogramRefused, KeyRejected
from hedgerow.crypto.vault.local_vault import LocalVault
from tests.federation import vertical
from tests.federation.memory import Outcome, run_in_memory
from tests.interop.moduli import FORGED, forged

ENGINE = Engine(workers=1)
Sent = dict[str, Any]


def run(widths: tuple[int, ...] = (2, 2), job: Any = None, **options: Any) -> Outcome:
    job = job or vertical.job()
    parties = vertical.cut_by_columns(vertical.table(120, sum(widths), job.task), widths)
    return run_in_memory(
        job,
        parties,
        schema=parties["guest"].schema,
        vaults=options.pop("vaults", vertical.vaults()),
        **options,
    )


def refused(outcome: Outcome, said: str, by: str = "host-1") -> None:
    assert isinstance(outcome.error, DataError), outcome.error
    assert said in str(outcome.error)
    assert isinstance(outcome.errors[by], OfferRejected), outcome.errors  # type: ignore[index]
    assert not any(outcome.kept.values())


# --- an active party that asks for more than the job says ------------------------------------


@pytest.fixture
def lies(monkeypatch: pytest.MonkeyPatch) -> Callable[[StepName, Callable[..., None]], None]:
    """Let the active party change what it sends in a step, sealed by its own keys.

    ``change`` gets what is sent, and a call that sends something else before it.
    """

    honest = SealedChannel.send

    def lie(step: StepName, change: Callable[..., None]) -> None:
        send = SealedChannel.send

        def sends(self: SealedChannel, at: Any, **sent: Any) -> Any:
            if self.party == "guest" and at.name == step.value:
                change(sent, lambda name, **more: honest(self, steps.STEPS[name], **more))
            return send(self, at, **sent)

        monkeypatch.setattr(SealedChannel, "send", sends)

    return lie


def go_on(lies: Any, then: StepName, **more: Any) -> None:
    """Let the active party name another step than the end of the round, and take it."""

    def other(sent: Sent, _: Any) -> None:
        if sent["then"] is StepName.SCORES:
            sent["then"] = then

    lies(StepName.SPLITS, other)
    lies(StepName.BITMAPS, other)
    lies(StepName.SCORES, lambda _, send: send(then, then=StepName.SCORES, **more))


LAYOUTS: dict[str, tuple[Callable[[PairLayout], PairLayout], str]] = {
    "18 classes": (
        lambda own: replace(own, n_classes=18),
        "expected n_classes 1 by the job, received 18",
    ),
    "more rows": (
        lambda own: replace(own, n_rows=1 << 39),
        "expected n_rows 256 by the job, received 549755813888",
    ),
    "wider gradients": (
        lambda own: replace(own, largest_grad=1 << 61),
        "largest_grad",
    ),
    "wider hessians": (lambda own: replace(own, largest_hess=1 << 61), "largest_hess"),
    "another precision": (
        lambda own: PairLayout(
            own.fraction_bits + 9, own.largest_grad << 9, own.largest_hess << 9, own.n_rows
        ),
        "by the job, received",
    ),
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_layout_that_the_job_does_not_have_is_refused(kind: str, lies: Any) -> None:
    wider, said = LAYOUTS[kind]

    def change(sent: Sent, _: Any) -> None:
        (box,) = sent["boxes"].values()
        sent["boxes"] = {"host-1": replace(box, layout=wider(box.layout))}

    lies(StepName.GRADIENTS, change)
    outcome = run()
    refused(outcome, "host-1: guest: layout of gradients: ")
    assert said in str(outcome.error)


@pytest.mark.parametrize("task", [Task.BINARY, Task.REGRESSION])
def test_a_weight_or_bound_of_the_rows_is_no_lie(task: Task) -> None:
    from hedgerow.boosting.strategies.secureboost.gradient_layout import (
        check_layout,
        layout_of_tree,
    )

    job = vertical.job(task)
    for exponents in ((0, 0), (3, 3), (-9, -9), (5, 0), (-30, 0), (-1074, 0)):
        if task is Task.BINARY and len(set(exponents)) > 1:
            continue
        own = layout_of_tree(job.parameters, job, 1000, exponents)  # type: ignore[arg-type]
        check_layout(own, job.parameters, job, 1000, "guest")  # type: ignore[arg-type]
        with pytest.raises(OfferRejected, match="guest: layout of gradients"):
            check_layout(own, job.parameters, job, 2000, "guest")  # type: ignore[arg-type]


def test_the_job_and_not_the_active_party_says_how_many_classes_there_are() -> None:
    job = vertical.job(Task.MULTICLASS, key_bits=2048)
    job.parameters.validate(job)
    with pytest.raises(InvalidJob, match="classes: a vertical job with more than two"):
        job.parameters.validate(replace(job, classes=0))
    outcome = run((2, 2), replace(vertical.job(Task.MULTICLASS), classes=5))
    assert "classes: expected 5 by the job, the label has 3" in str(outcome.error)


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ([7], "of at least 120 rows of training, received those of 1"),
        (list(range(119)), "received those of 119"),
    ],
)
def test_gradients_of_chosen_rows_alone_are_refused(
    chosen: list[int], said: str, lies: Any
) -> None:
    def change(sent: Sent, _: Any) -> None:
        mask = np.zeros(120, np.bool_)
        mask[chosen] = True
        (box,) = sent["boxes"].values()
        sent["boxes"] = {"host-1": replace(box, sampled=np.packbits(mask).tobytes())}

    lies(StepName.GRADIENTS, change)
    refused(run(), said)


def test_rows_that_are_held_back_have_no_gradients(lies: Any) -> None:
    def change(sent: Sent, _: Any) -> None:
        (box,) = sent["boxes"].values()
        sent["boxes"] = {"host-1": replace(box, sampled=b"\xff" * 15)}

    lies(StepName.GRADIENTS, change)
    refused(run(job=vertical.job(validation=0.2)), "received those of 96, and of 120 rows in all")


def test_ciphertexts_of_another_number_of_rows_are_refused(lies: Any) -> None:
    def change(sent: Sent, _: Any) -> None:
        sent["ciphertexts"] = {to: (b[0][:-1],) for to, b in sent["ciphertexts"].items()}

    lies(StepName.GRADIENTS, change)
    refused(run(), "guest: expected ciphertexts of 256 rows")


def test_a_node_below_the_jobs_levels_is_not_divided(lies: Any) -> None:
    box = steps.LevelDivisions((NodeDivision(1, 0),), bytes(15))
    go_on(lies, StepName.SPLITS, boxes={"host-1": box})
    refused(run(job=vertical.job(booster={"max_depth": 1})), "deeper than the 1 levels of the job")


def test_a_tree_has_no_more_leaves_than_the_job_says(lies: Any) -> None:
    box = steps.LevelDivisions((NodeDivision(1, 0),), bytes(15))
    go_on(lies, StepName.SPLITS, boxes={"host-1": box})
    job = vertical.job(booster={"max_depth": 0, "max_leaves": 2, "grow_policy": "lossguide"})
    refused(run(job=job), "guest grows a tree of more than 2 leaves")


def test_sums_are_sent_once(lies: Any) -> None:
    lies(
        StepName.HISTOGRAMS,
        lambda sent, send: send(StepName.HISTOGRAMS, then=StepName.HISTOGRAMS),
    )
    refused(run(), "guest asks for sums of nodes that it has already")


def test_more_trees_than_the_job_has_are_refused(lies: Any) -> None:
    go_on(lies, StepName.GRADIENTS)
    refused(run(), "guest grows more than 1 trees in round 0")


# --- bins with few rows ----------------------------------------------------------------------


def with_limits(**limits: Any) -> Callable[..., Any]:
    def participates(parameters: Any, link: Any, vault: Any, start: Any) -> Any:
        return participate(parameters, link, vault, replace(start, limits=PartyLimits(**limits)))

    return participates


def small_groups(known: dict[int, Any], tree: PassiveTree, least: int) -> list[int]:
    """Return the sizes, below ``least``, of groups of rows that the known sums tell apart.

    Naively, from the rows that each known division sends left, for every node and column.
    """
    table, found = tree._table, []
    for node in set(known) & set(tree._partition.nodes):
        rows = tree._partition.rows(node)
        if not len(rows):
            continue
        for column in table.features:
            at = np.flatnonzero(known[node] & (table.feature == column))
            bins, n_bins = tree._binned.column(column)[rows], int(tree._binned.n_bins[column])
            sides = [table.bins_left(d, n_bins)[bins] for d in at]
            missing = bins == n_bins
            for d, side in zip(at, sides, strict=True):  # what is summed: present rows of one side
                side[missing] = False
                if table.default_left[d]:
                    side[:] = ~side & ~missing
            if not len(at):
                continue
            sums = [np.zeros(len(rows), np.bool_), np.ones(len(rows), np.bool_), *sides]
            for one in sums:
                for other in sums:
                    if not (one & ~other).any():
                        found.append(int((other & ~one).sum()) % len(rows))
                    if not (one & other).any():
                        found.append(int((~one & ~other).sum()) % len(rows))
    return [n for n in found if 0 < n < least]  # a whole node is nothing new


@pytest.mark.parametrize("least", [1, 2, 7])
@pytest.mark.parametrize(
    ("missing", "changes"),
    [
        (0.0, {}),
        (0.1, {}),
        (0.9, {}),
        (0.1, {"increasing": ("host-1:host-1_0", "guest:guest_1")}),
        (0.2, {"categories": "sets"}),
    ],
)
def test_no_two_sums_of_a_column_differ_by_few_rows(
    least: int, missing: float, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the nodes whose sums are sent, nor in those that follow by subtraction."""
    small: list[int] = []
    answer = PassiveTree.answer

    def looked_at(self: PassiveTree) -> StepName:
        try:
            return answer(self)
        finally:
            small.extend(small_groups(self._known, self, max(least, 2)))

    monkeypatch.setattr(PassiveTree, "answer", looked_at)
    booster = {"max_depth": 4, "min_child_weight": 0, "max_bin": 16}
    job = vertical.job(booster=booster, **changes)
    whole = vertical.table(150, 5, missing=missing)
    if "categories" in changes:
        whole = vertical.with_text(whole, {2: 12, 4: 5})
    parties = vertical.cut_by_columns(whole, (2, 3))
    outcome = run_in_memory(
        job, parties, schema=parties["guest"].schema, vaults=vertical.vaults(),
        participate_as=with_limits(least_bin_rows=least),
    )  # fmt: skip
    assert outcome.error is None, outcome.error
    _, passive = vertical.parts(outcome.kept)
    assert passive["host-1"].nodes, "the party still divides nodes"
    assert bool(small) == (least == 1)


def test_a_vault_refuses_sums_that_tell_few_rows_apart() -> None:
    vault = LocalVault(ENGINE, insecure_test_keys=True)
    key = vault.create_cipher_key("job", 512)
    layout = PairLayout.fit(n_rows=10, max_abs_grad=1, max_hess=1, fraction_bits=12)
    rows = vault.encrypt_gradients("job", layout, np.ones((10, 1)), np.ones((10, 1)))
    bins = np.array([[0, 0, 0, 1, 2, 2, 2, 3, 3, 3]], np.uint8).T  # the last is of missing values
    everything = [np.arange(10)]

    def ask(order: list[int], nodes: Any = everything, least: int = 3, **more: Any) -> Any:
        vault.hold_rows("job", key, layout, rows, bins, [4], least)
        options = {"cumulative": True, "missing": [True], **more}
        return vault.sum_bins("job", nodes, order=np.array(order), **options)

    # Running sums: bins to 0, to 1, to 2; then bins from 1, from 2.
    for order in ([0], [0, 2], [1], [2, 4], [0, 3]):
        ask(order)
    for order in ([0, 1], [3, 4], [0, 4]):
        with pytest.raises(HistogramRefused, match="differ by 3 rows"):
            ask(order)
    with pytest.raises(HistogramRefused, match="differ by 3 rows"):
        ask([0], [np.array([0, 1, 4, 5, 6])])
    with pytest.raises(HistogramRefused, match="differ by 3 rows"):
        ask([1], cumulative=False, missing=None)
    ask([0, 2], cumulative=False, missing=None)
    ask([0, 1], least=1)


# --- a policy of one's own -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "job", "said"),
    [
        ({"max_classes": 2}, vertical.job(Task.MULTICLASS), "max_classes: 3 is over 2"),
        ({"max_trees": 5}, vertical.job(Task.MULTICLASS), "max_trees: 6 is over 5"),
        ({"max_gradient_bits": 20}, vertical.job(), "max_gradient_bits: 26 is over 20"),
    ],
)
def test_a_passive_partys_policy_declines_wide_or_long_jobs(
    rule: Sent, job: Any, said: str
) -> None:
    def check(rules: Sent, asked: Any) -> None:
        parties = vertical.cut_by_columns(vertical.table(20, 4, asked.task), (2, 2))
        schema = parties["host-1"].schema
        silos = ("guest", "host-1")
        kinds = {"may_send": tuple(Discloses), **rules}
        Policy(**kinds).check(
            asked, operator="", silos=silos, columns=schema.names, n_samples=20,
            forecast=asked.strategy.forecast(
                asked.parameters, asked, schema, dict.fromkeys(silos, 20)
            ),
            allowances=asked.strategy.allowances(asked.parameters, asked, schema, 2),
        )  # fmt: skip

    loose = {name: most * 9 for name, most in rule.items()}
    job = replace(job, parameters=replace(job.parameters, key_bits=2048))
    check(loose, job)
    with pytest.raises(PolicyDeclined, match=said):
        check(rule, job)


def test_a_bound_of_this_rounds_gradients_does_not_lift_a_policys_bits() -> None:
    """Where the loss has no bound, what the active party says of it is held to the policy."""
    job = vertical.job(Task.REGRESSION)
    assert job.parameters.safeguards(job).gradient_bits == 26
    outcome = run(job=job, participate_as=with_limits(most_gradient_bits=26))
    refused(outcome, "host-1: guest: gradients of 2")
    assert "policy rule max_gradient_bits of host-1 allows 26" in str(outcome.error)
    assert run(job=job, participate_as=with_limits(most_gradient_bits=40)).error is None


# --- gradients that are none -----------------------------------------------------------------


def recovered(wide: bool) -> int:
    """Return of how many rows an answer of one bin shows whether they are in it.

    The active party encrypts 2^k for row k, far beyond the agreed width of a pair.
    """
    n = 400
    owner = PaillierOwner(generate_private_key(512, insecure_test_key=True), ENGINE)
    peer = PaillierPeer(owner.private_key.public_key, ENGINE)
    agreed = PairLayout.fit(n_rows=n, max_abs_grad=1, max_hess=1, fraction_bits=16)
    layout = replace(agreed, n_classes=8) if wide else agreed
    rows = owner.encrypt_integers([1 << k for k in range(n)])
    held = peer.hold(layout, (rows,), np.zeros((n, 1), np.uint8), [1])
    inside = np.random.default_rng(0).random(n) < 0.5
    (answer,) = held.answer([np.flatnonzero(inside)], cumulative=True, missing=None, order=None)
    (plaintext,) = owner.decrypt_integers(answer)
    shown = np.array([plaintext >> k & 1 for k in range(n)], np.bool_)
    wrong = np.flatnonzero(shown != inside)
    return int(wrong[0]) if len(wrong) else n


def test_powers_of_two_as_gradients_show_no_more_rows_than_a_pair_has_bits() -> None:
    agreed = PairLayout.fit(n_rows=400, max_abs_grad=1, max_hess=1, fraction_bits=16)
    assert recovered(wide=False) <= agreed.pair_bits + 12, "a few bits above may agree by chance"
    assert recovered(wide=True) > 5 * agreed.pair_bits, "the attack works with a layout as wide"


# --- public keys that are none ---------------------------------------------------------------


@pytest.mark.parametrize("kind", FORGED)
def test_a_modulus_without_a_proof_is_refused(kind: str) -> None:
    data, said = forged(kind, 512)
    with pytest.raises(KeyRejected, match=said):
        PublicKey.from_certified(data, insecure_test_key=True)

    class Forger(LocalVault):
        def create_cipher_key(self, *arguments: Any, **options: Any) -> bytes:
            super().create_cipher_key(*arguments, **options)
            return data

    bits = paillier_keys.modulus_bits(data)
    made = {"guest": Forger(ENGINE, insecure_test_keys=True)}
    honest = vertical.vaults()
    outcome = run(
        job=vertical.job(key_bits=bits), vaults=lambda silo: made.get(silo) or honest(silo)
    )
    refused(outcome, "host-1: guest sent gradients that cannot be used: ")
    assert said in str(outcome.error)


def test_a_proven_modulus_is_taken() -> None:
    key = generate_private_key(512, insecure_test_key=True)
    read = PublicKey.from_certified(key.certified_bytes(), insecure_test_key=True)
    assert read == key.public_key


@pytest.mark.parametrize("bits", [2047, 2050, 4097])
def test_a_modulus_of_a_length_between_is_refused(bits: int) -> None:
    with pytest.raises(KeyRejected, match="bits"):
        PublicKey(1 << bits - 1 | 1)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"key_bits": 1024}, "guest: expected a modulus of 1024 bits, received 512"),
        ({"encryption": "elgamal"}, "guest: expected a public key of elgamal, received another"),
    ],
)
def test_a_key_of_another_kind_than_the_jobs_is_refused(asked: Sent, said: str) -> None:
    class Other(LocalVault):
        def create_cipher_key(self, session: str, *rest: Any) -> bytes:
            return super().create_cipher_key(session, 512, "paillier")

    made = {"guest": Other(ENGINE, insecure_test_keys=True)}
    honest = vertical.vaults()
    outcome = run(job=vertical.job(**asked), vaults=lambda silo: made.get(silo) or honest(silo))
    refused(outcome, said)


# --- a passive party that sends other sums ---------------------------------------------------


def test_sums_above_those_of_their_node_are_refused() -> None:
    class Generous(LocalVault):
        """Sums all rows, whichever node it is asked for."""

        def sum_bins(self, session: str, nodes: Any, **options: Any) -> Any:
            return super().sum_bins(session, [np.arange(120) for _ in nodes], **options)

    made = {"host-1": Generous(ENGINE, insecure_test_keys=True)}
    honest = vertical.vaults()
    outcome = run((1, 3), vaults=lambda silo: made.get(silo) or honest(silo))
    assert "guest: passive party 1: expected sums over some of a node's rows" in str(outcome.error)


# --- guessed ids ------------------------------------------------------------------------------


def intersected(guesser: str, n_guesses: int, attempts: list[int], **limits: Any) -> Outcome:
    """A job of a party that guesses ids, and one that has 60 of them and its own policy."""
    widths = [2, 2]
    parties = vertical.cut_by_columns(vertical.table(n_guesses, sum(widths)), widths)
    (honest,) = set(parties) - {guesser}
    parties[honest] = parties[honest].take(np.arange(60, dtype=np.intp))
    of_policy = Policy(**limits).limits

    def charged(asked: int, own: int) -> None:
        attempts.append(asked)

    def participates(parameters: Any, link: Any, vault: Any, start: Any) -> Any:
        if start.silo == honest:
            start = replace(start, limits=of_policy, asked_ids=charged)
        return participate(parameters, link, vault, start)

    return run_in_memory(
        vertical.job(encryption="plain"),
        parties,
        schema=parties["guest"].schema,
        vaults=vertical.vaults(),
        participate_as=participates,
    )


@pytest.mark.parametrize("guesser", ["guest", "host-1"])
def test_a_million_guesses_find_no_id(guesser: str) -> None:
    answered: list[int] = []
    outcome = intersected(guesser, 601, answered)
    assert f"{guesser} has more than 10 times as many distinct ids" in str(outcome.error)
    assert "max_ids_ratio" in str(outcome.error)
    assert not answered, "none was answered"


@pytest.mark.parametrize("guesser", ["guest", "host-1"])
def test_a_list_of_guesses_that_finds_most_ids_is_named(guesser: str) -> None:
    answered: list[int] = []
    outcome = intersected(guesser, 600, answered)
    assert "more than 50% of this party's ids are common" in str(outcome.error)
    assert guesser in str(outcome.error)
    assert "max_common" in str(outcome.error)
    assert answered == [600]
    assert intersected(guesser, 600, [], max_common=1.0).error is None
    assert intersected(guesser, 240, []).error is None
