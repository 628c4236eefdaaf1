"""A coordinator sends models that would crash XGBoost or the kernels: each silo refuses by name.

Before :mod:`hedgerow.boosting.trees.loading` a feature of 1e9 or a cycle ended every agent by a
segmentation fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.errors import ModelRejected
from hedgerow.boosting.exchange import ExchangeKey, Step
from hedgerow.boosting.rounds.steps import GENESIS, TreeRound, TreeStanding, extend_digest
from hedgerow.boosting.strategies.bagging.parameters import Bagging
from hedgerow.boosting.strategies.fedxgbllr.steps import Ensembles, PackedEnsemble
from hedgerow.boosting.strategies.histogram.steps import RoundEntry
from hedgerow.boosting.trees import ubjson
from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.boosting.trees.loading import load
from hedgerow.boosting.trees.packing import pack, unpack
from tests.boosting.trees.ensembles import KINDS
from tests.federation import stacking, test_bagging, test_histogram
from tests.federation.memory import MemoryLink, run_in_memory

LIED_TO = "s00"


class LyingLink(MemoryLink):
    """Changes the replies of the coordinator to one silo."""

    lie: ClassVar[Callable[[Any, Any], Any]]
    digest = GENESIS

    def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
        reply = super().exchange(step, at, offer)
        if self.silo.removeprefix("silo-") not in ("0", LIED_TO):
            return reply
        return type(self).lie(self, reply)


def lying(lie: Callable[[Any, Any], Any]) -> type[MemoryLink]:
    return type("Lying", (LyingLink,), {"lie": staticmethod(lie)})


# --- histogram: the model that is sent again to a silo that enters ---


def column(name: str, at: int, value: float) -> Callable[[dict[str, Any]], None]:
    def change(model: dict[str, Any]) -> None:
        values = model["trees"][0][name].copy()
        values[at] = value
        model["trees"][0][name] = values

    return change


def deleted_cycle(model: dict[str, Any]) -> None:
    column("left_children", 1, 0)(model)
    model["trees"][0]["tree_param"]["num_deleted"] = "1"


def deleted_child(model: dict[str, Any]) -> None:
    column("right_children", 0, 10**9)(model)
    model["trees"][0]["tree_param"]["num_deleted"] = "1"


def shorter(model: dict[str, Any]) -> None:
    model["trees"][0]["split_conditions"] = model["trees"][0]["split_conditions"][:1]


def categories(model: dict[str, Any]) -> None:
    tree = model["trees"][0]
    one = np.array([0])
    tree["categories"] = np.array([2**31 - 1], np.int32)
    tree["categories_nodes"], tree["categories_segments"] = one.astype(np.int32), one
    tree["categories_sizes"], tree["split_type"] = one + 1, tree["split_type"].copy()
    tree["split_type"][0] = 1


def other_class(model: dict[str, Any]) -> None:
    model["tree_info"][0] = 7


def many_steps(model: dict[str, Any]) -> None:
    model["iteration_indptr"][-1] = 2**30


def foreign_names(model: dict[str, Any]) -> None:
    n = int(len(model["cats"].get("enc", ())) or 4)
    ends, values = np.array([0, 10**9], np.int32), np.frombuffer(b"ab", np.int8)
    model["cats"]["enc"] = [{"offsets": ends, "values": values}] * n


BAD_MODELS: dict[str, Callable[[dict[str, Any]], None]] = {
    "a feature of 1e9": column("split_indices", 0, 10**9),
    "a negative feature": column("split_indices", 0, -7),
    "a cycle": column("left_children", 1, 0),
    "a child of 1e9": column("right_children", 0, 10**9),
    "a cycle among deleted nodes": deleted_cycle,
    "a foreign child beside deleted nodes": deleted_child,
    "columns of unequal length": shorter,
    "a category of 2^31": categories,
    "a threshold that is no number": column("split_conditions", 0, np.nan),
    "a class that is not there": other_class,
    "more steps than trees": many_steps,
    "category names beyond their bytes": foreign_names,
}


def changed(model: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    document = ubjson.read(model)
    change(document["learner"]["gradient_booster"]["model"])
    return ubjson.write(document)


Memories = dict[str, dict[str, bytes]]


@pytest.fixture(scope="module")
def stopped() -> tuple[bytes, Memories]:
    """Return the checkpoint of two rounds, and what silos have stored."""
    job, silos = test_histogram.plain_job(), histogram_silos()
    memories: Memories = {silo: {} for silo in silos}
    outcome = test_histogram.run(job, silos, stop_after_rounds=2, memories=memories)
    return outcome.rounds[-1].checkpoint, memories


def histogram_silos() -> Any:
    return test_histogram.silos_of(test_histogram.DATA, (400, 400, 400, 300))


def entered_again(stopped: tuple[bytes, Memories], lie: Callable[[bytes], bytes]) -> Any:
    """Restart the job; one silo is sent another model than the others when it enters."""
    checkpoint, memories = stopped

    def lies(link: MemoryLink, reply: Any) -> Any:
        if not isinstance(reply, RoundEntry) or reply.state is None:
            return reply
        model = np.frombuffer(lie(reply.state.model.tobytes()), np.uint8)
        return replace(reply, state=replace(reply.state, model=model))

    return test_histogram.run(
        test_histogram.plain_job(),
        histogram_silos(),
        checkpoint=checkpoint,
        memories={silo: dict(own) for silo, own in memories.items()},
        first_round=2,
        attempt=2,
        make_link=lying(lies),
    )


@pytest.mark.parametrize("attack", BAD_MODELS)
def test_a_silo_that_enters_refuses_a_model_that_is_no_trees(
    attack: str, stopped: tuple[bytes, Memories]
) -> None:
    outcome = entered_again(stopped, lambda model: changed(model, BAD_MODELS[attack]))
    assert outcome.errors.keys() == {"silo-0"}
    refusal = outcome.errors["silo-0"]
    assert isinstance(refusal, ModelRejected)
    assert "the coordinator" in str(refusal)
    assert len(outcome.rounds) == 2  # the others went on


def test_a_silo_that_enters_refuses_another_beginning_and_other_bytes(
    stopped: tuple[bytes, Memories],
) -> None:
    def wider(model: bytes) -> bytes:
        document = ubjson.read(model)
        document["learner"]["learner_model_param"]["num_feature"] = "1000000"
        return ubjson.write(document)

    for lie in (wider, lambda model: b"{" * 5000, lambda model: model[:-1], lambda model: b""):
        refusal = entered_again(stopped, lie).errors["silo-0"]
        assert isinstance(refusal, ModelRejected)


# --- packs: bagging and FedXGBllr ---


def spoilt(**columns: Any) -> Callable[[Tree], Tree]:
    return lambda tree: replace(tree, **{name: make(tree) for name, make in columns.items()})


def root(name: str, value: float) -> Callable[[Tree], Any]:
    def make(tree: Tree) -> Any:
        values = getattr(tree, name).copy()
        values[0] = value
        return values

    return make


def all_at_the_root(tree: Tree) -> Any:
    return np.where(tree.left < 0, -1, 0).astype(np.int32)


BAD_TREES = {
    "a feature of 1e9": spoilt(feature=root("feature", 10**9)),
    "a cycle": spoilt(left=all_at_the_root, right=all_at_the_root),
    "a child of 1e9": spoilt(right=root("right", 10**9)),
    "a threshold that is no number": spoilt(threshold=root("threshold", np.inf)),
    "a category that is not there": spoilt(
        categories=lambda tree: ((0, np.array([5000], np.int32)),)
    ),
    "another class": spoilt(group=lambda tree: 3),
}


def repacked(data: bytes, spoil: Callable[[Tree], Tree]) -> bytes:
    return pack([spoil(tree.scrubbed()) for tree in unpack(data)])


@pytest.mark.parametrize("attack", BAD_TREES)
def test_a_silo_of_bagging_refuses_trees_that_are_none(attack: str) -> None:
    offered: list[bytes] = []

    def lies(link: Any, reply: Any) -> Any:
        if not isinstance(reply, TreeStanding) or not reply.rounds:
            return reply
        rounds, digest = [], GENESIS
        for received in reply.rounds:
            spoilt = [
                (silo, factor, own if silo == link.silo else repacked(own, BAD_TREES[attack]))
                for silo, factor, own in received.whole(link.silo, offered[0]).packs()
            ]
            sent = TreeRound.of(received.steps, spoilt)
            rounds.append(sent.without(link.silo))
            digest = extend_digest(digest, sent)
        return replace(reply, rounds=tuple(rounds), digest=digest)

    class Link(lying(lies)):  # type: ignore[misc]
        def exchange(self, step: Step[Any, Any], at: ExchangeKey, offer: Any) -> Any:
            if self.silo == "silo-0" and getattr(offer, "data", b""):
                offered.append(offer.data)
            return super().exchange(step, at, offer)

    kind = KINDS[0]
    job = test_bagging.job(kind, Bagging(rounds=2, scrub="none"), min_silos=2)
    data = test_bagging.silos(kind, 200, 200, 200)
    outcome = run_in_memory(job, data, through_wire=True, make_link=Link)
    assert outcome.errors.keys() == {"silo-0"}
    refusal = outcome.errors["silo-0"]
    assert isinstance(refusal, ModelRejected)
    assert "trees of silo-1" in str(refusal)
    assert len(outcome.rounds) == 2


@pytest.mark.parametrize("attack", BAD_TREES)
def test_a_silo_of_fedxgbllr_refuses_trees_that_are_none(attack: str) -> None:
    def lies(link: Any, reply: Any) -> Any:
        if not isinstance(reply, Ensembles):
            return reply
        sent = {
            silo: PackedEnsemble(
                np.frombuffer(repacked(own.trees.tobytes(), BAD_TREES[attack]), np.uint8), None
            )
            for silo, own in reply.ensembles.items()
        }
        return Ensembles(sent)

    job = stacking.job(Task.BINARY, stacking.small(combiner="mean"), min_silos=2)
    data = stacking.silos(Task.BINARY, 3)
    outcome = run_in_memory(job, data, through_wire=True, make_link=lying(lies))
    assert outcome.errors.keys() == {"s00"}
    refusal = outcome.errors["s00"]
    assert isinstance(refusal, ModelRejected)
    assert "trees of s01" in str(refusal)


def test_the_models_of_these_tests_are_sound_before_they_are_changed(
    stopped: tuple[bytes, Memories],
) -> None:
    outcome = entered_again(stopped, lambda model: model)
    assert not outcome.errors
    assert load(test_histogram.model_of(outcome).save()).version == 4
