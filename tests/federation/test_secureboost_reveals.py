"""Who sees what in a vertical job: the coordinator, passive parties, the active party."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
import pytest

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.exchange import ExchangeKey
from hedgerow.boosting.strategies.secureboost import steps
from hedgerow.boosting.strategies.secureboost.courier import Delivery, SealedChannel
from hedgerow.boosting.strategies.secureboost.steps import SealedPiece
from hedgerow.services.wire import BoxCodec
from tests.federation import vertical
from tests.federation.memory import MemoryLink, run_in_memory

KINDS = {
    "identifiers": steps.BlindedSets,
    "scores": steps.ModelState,
    "splits": steps.LevelDivisions,
    "bitmaps": steps.LeftRows,
}


_OF_ROLE: dict[tuple[str, bool], type[Any]] = {
    ("gradients", True): steps.TreeGradients,
    ("gradients", False): steps.CandidateCount,
    ("histograms", False): steps.CandidateSums,
}
"""Contents of boxes by step, and whether they are from the active party; others are refused."""


@dataclass
class Views:
    """What was offered to the coordinator, and what parties were given, in order."""

    offers: list[tuple[str, str, ExchangeKey, steps.RelayPass]] = field(default_factory=list)
    boxes: dict[str, list[tuple[str, int, str, Any]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    ciphertexts: dict[str, list[tuple[str, int, str, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def steps_of(self, party: str) -> set[str]:
        return {step for step, _, _, _ in self.boxes[party]}


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> Views:
    """Record every offer and everything that a party opens; nothing is changed."""
    seen = Views()
    exchange, send = MemoryLink.exchange, SealedChannel.send

    def recorded(self: MemoryLink, step: Any, at: ExchangeKey, offer: Any) -> Any:
        seen.offers.append((self.silo, step.name, at, offer))
        return exchange(self, step, at, offer)

    def opened(self: SealedChannel, step: Any, **options: Any) -> Delivery:
        round = self._at.round
        received = send(self, step, **options)
        for sender, data in received.boxes.items():
            kind = KINDS.get(step.name) or _OF_ROLE[step.name, sender == "guest"]
            box = BoxCodec().load(kind, data)
            seen.boxes[self.party].append((step.name, round, sender, box))
        for sender, parts in received.ciphertexts.items():
            n = sum(len(part) for part in parts)
            seen.ciphertexts[self.party].append((step.name, round, sender, n))
        return received

    monkeypatch.setattr(MemoryLink, "exchange", recorded)
    monkeypatch.setattr(SealedChannel, "send", opened)
    return seen


def run(parties: dict[str, Dataset], **changes: Any) -> Any:
    outcome = run_in_memory(
        vertical.job(**changes),
        parties,
        schema=parties["guest"].schema,
        vaults=vertical.vaults(),
    )
    assert outcome.error is None, (outcome.error, outcome.errors)
    return outcome


def size_of(piece: Any) -> tuple[str, int, int]:
    """Return receiver, part (-1 for a box) and length of a piece."""
    part = -1 if isinstance(piece, SealedPiece) else piece.part
    return piece.party, part, len(piece.data)


def shape_of_offers(views: Views) -> list[tuple[str, str, int, tuple[tuple[str, int, int], ...]]]:
    """Return all that the coordinator can tell of gradients: who sent how much to whom."""
    return [
        (silo, step, at.round, tuple(size_of(piece) for piece in offer.pieces))
        for silo, step, at, offer in views.offers
        if step in ("identifiers", "gradients")
    ]


def test_the_coordinator_sees_sealed_boxes_ciphertexts_and_scores_only(views: Views) -> None:
    whole = vertical.table(150, 4)
    run(vertical.cut_by_columns(whole, [2, 2]))
    assert whole.ids is not None
    ids = [str(i).encode() for i in whole.ids]
    for silo, step, _, offer in views.offers:
        data = b"".join(_bytes_of(piece) for piece in offer.pieces)
        assert not any(i in data for i in ids), (silo, step)
        open_pieces = [piece for piece in offer.pieces if not isinstance(piece, SealedPiece)]
        if step not in ("keys", "gradients", "histograms"):
            assert not open_pieces, (silo, step)
        note = offer.note
        scores = {f"{score.rows.value}.{score.metric}" for score in note.scores}
        assert scores <= {"train.auc", "train.logloss"}
        ends_round = silo == "guest" and step == "scores"
        assert bool(scores) == (note.best_round is not None) == ends_round
        assert silo == "guest" or note.then is None


def _bytes_of(piece: Any) -> bytes:
    if isinstance(piece, steps.PartyKeys):
        return piece.box_key + piece.cipher_key + piece.model + piece.certificate
    return bytes(piece.data)


def test_sizes_tell_the_coordinator_rows_only_to_an_eighth(views: Views) -> None:
    shapes = []
    for n in (1000, 1015):
        views.offers.clear()
        whole = vertical.table(n, 2, seed=1)
        run(vertical.cut_by_columns(whole, [1, 1]), rounds=1, booster={"max_depth": 1})
        shapes.append(sorted(shape_of_offers(views)))
    assert shapes[0] == shapes[1]


def test_a_passive_party_gets_rows_and_names_of_nodes_and_no_numbers(views: Views) -> None:
    run(vertical.cut_by_columns(vertical.table(150, 4), [2, 2]))
    assert views.steps_of("host-1") <= {"identifiers", "gradients", "splits", "scores"}
    assert not any(has_fractions(box) for _, _, _, box in views.boxes["host-1"])


def has_fractions(content: Any) -> bool:
    """Tell whether there is a float in a box, at any depth."""
    if is_dataclass(content):
        return any(has_fractions(getattr(content, f.name)) for f in fields(content))
    if isinstance(content, tuple):
        return any(map(has_fractions, content))
    return isinstance(content, float) or getattr(content, "dtype", np.dtype(int)).kind == "f"


def test_the_active_party_gets_no_feature_or_threshold_of_another(views: Views) -> None:
    outcome = run(vertical.cut_by_columns(vertical.table(150, 4), [2, 2]))
    assert views.steps_of("guest") <= {"identifiers", "gradients", "histograms", "bitmaps"}
    assert not any(has_fractions(box) for _, _, _, box in views.boxes["guest"])
    _, passive = vertical.parts(outcome.kept)
    # Features go under numbers that the passive party has shuffled.
    assert sorted(passive["host-1"].anonymous) == [0, 1]


def test_candidates_come_in_another_order_for_every_tree(views: Views) -> None:
    whole = vertical.table(300, 6)
    whole.X[:, 0] = 0
    parties = vertical.cut_by_columns(whole, [1, 5])
    outcome = run(parties, rounds=4, booster={"max_depth": 1, "eta": 0.001})
    _, passive = vertical.parts(outcome.kept)
    divisions = {
        (feature, threshold) for _, feature, threshold, _ in passive["host-1"].nodes.values()
    }
    assert len(divisions) == 1, "the same division wins every time"
    chosen = [
        box.divisions[0].tied
        for step, _, _, box in views.boxes["host-1"]
        if step == "splits" and box.divisions
    ]
    assert len(chosen) == 4
    assert len(set(chosen)) > 1


def test_answers_differ_every_time_though_the_sums_are_the_same() -> None:
    vault = vertical.vaults()("x")
    key = vault.create_cipher_key("s", vertical.KEY_BITS)
    from hedgerow.crypto.ciphers.packing import PairLayout

    layout = PairLayout.fit(n_rows=8, max_abs_grad=1.0, max_hess=1.0, fraction_bits=16)
    rows = vault.encrypt_gradients("s", layout, np.ones((8, 1)), np.ones((8, 1)))
    vault.hold_rows("s", key, layout, rows, np.zeros((8, 1), np.uint8), [1])
    node = [np.arange(8)]
    one, other = (vault.sum_bins("s", node, cumulative=True)[0] for _ in range(2))
    assert (one != other).any()
    sums = [vault.decrypt_histograms("s", layout, (a,), 1) for a in (one, other)]
    assert np.array_equal(sums[0][0], sums[1][0])


def test_first_rounds_of_complete_secure_show_passive_parties_nothing(views: Views) -> None:
    run(vertical.cut_by_columns(vertical.table(150, 4), [2, 2]), complete_secure=2, rounds=3)
    for step, round, _, _ in views.boxes["host-1"]:
        assert round == 2 or step in ("identifiers", "scores")
    assert {round for _, round, _, _ in views.ciphertexts["host-1"] if round} == {2}


def test_in_mix_mode_a_party_sees_nothing_of_others_trees(views: Views) -> None:
    whole = vertical.table(150, 6)
    run(vertical.cut_by_columns(whole, [2, 2, 2]), mode="mix", rounds=3)
    for party, turn in (("host-1", 1), ("host-2", 2)):
        tree_steps = [
            (step, round)
            for step, round, _, _ in views.boxes[party]
            if step not in ("identifiers", "scores")
        ]
        assert tree_steps
        assert {round for _, round in tree_steps} == {turn}
        gradients = {r for step, r, _, _ in views.ciphertexts[party] if step == "gradients"}
        assert gradients == {turn}


def test_in_layered_mode_the_passive_party_is_not_told_the_lower_levels(views: Views) -> None:
    outcome = run(
        vertical.cut_by_columns(vertical.table(300, 4), [2, 2]),
        mode="layered", host_depth=2, guest_depth=2, rounds=1,
    )  # fmt: skip
    told = {
        division.node
        for step, _, _, box in views.boxes["host-1"]
        if step == "splits"
        for division in box.divisions
    }
    active, _ = vertical.parts(outcome.kept)
    own = {k for k, owner in enumerate(active.trees[0].owner) if owner == 1}
    assert told == own
