"""Payloads and parameters of strategies that are packages of their own."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest

from hedgerow.api.federation.v1 import extension_pb2, job_pb2
from hedgerow.boosting import registry
from hedgerow.boosting.checks import Within
from hedgerow.boosting.errors import InvalidJob, OfferRejected, PolicyDeclined
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.payloads import Float32s
from hedgerow.boosting.ports import strategy_of
from hedgerow.client_agent.policy import Policy
from hedgerow.services.wire import codec_of, extension, job_file
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire.bounds import MAX_OBJECTS
from hedgerow.services.wire.job_reference import keys_of
from tests import plugin


class Way(Enum):
    LEFT = "left"
    RIGHT = "right"


@dataclass(frozen=True)
class Inner:
    silo: Silo
    numbers: Float32s


@dataclass(frozen=True, eq=False)
class Outer:
    whole: int
    number: float
    truth: bool
    text: str | None
    data: bytes
    way: Way
    names: tuple[str, ...]
    inner: tuple[Inner, ...]
    wide: Float32s

    def __post_init__(self) -> None:
        if self.whole < -5:
            raise ValueError("whole: expected at least -5")


def outer(**changes: Any) -> Outer:
    inner = (Inner(Silo("a"), np.arange(3, dtype=np.float32)), Inner(Silo("b"), np.zeros(0, "<f4")))
    wide = np.arange(700_000, dtype=np.float32)
    given = (-3, 0.5, True, None, b"\x00", Way.RIGHT, ("x", ""), inner, wide)
    return Outer(**dict(zip(Outer.__dataclass_fields__, given, strict=True)) | changes)


def sent(payload: Outer) -> list[Any]:
    return [
        extension_pb2.ExtensionPart.FromString(
            part.SerializeToString()
            if hasattr(part, "SerializeToString")
            else extension_pb2.ExtensionPart(more=bytes(part.data)).SerializeToString()
        )
        for part in codec_of(Outer).encode(payload)
    ]


def test_a_payload_of_another_package_travels_with_no_message_of_its_own() -> None:
    parts = sent(outer())
    assert len(parts) == 4  # 2.8 MB of numbers follow the record
    found = codec_of(Outer).decode(iter(parts))
    assert (found.whole, found.number, found.truth, found.text) == (-3, 0.5, True, None)
    assert (found.data, found.way, found.names) == (b"\x00", Way.RIGHT, ("x", ""))
    assert [(one.silo, one.numbers.tolist()) for one in found.inner] == [
        ("a", [0, 1, 2]),
        ("b", []),
    ]
    assert np.array_equal(found.wide, outer().wide)


def test_what_is_no_such_payload_is_refused_and_runs_nothing() -> None:
    first, *rest = sent(outer())
    decode = codec_of(Outer).decode

    def changed(name: str = first.record.name, content: bytes = first.record.content) -> list[Any]:
        record = extension_pb2.ExtensionRecord(name=name, content=content)
        return [extension_pb2.ExtensionPart(record=record), *rest]

    message = extension.message_of(Outer).FromString(first.record.content)
    for wrong, told in [
        (changed(name="os.system"), r"expected a \w+\.Outer, received 'os.system'"),
        (changed(content=b"\xff\xff"), "no such message"),
        (changed(content=b""), "expected a value, received none|is not known"),
        ([first], "expected 2800000 bytes"),
        ([first, *rest, rest[-1]], "bytes more than"),
        (rest, "expected record, received more"),
        ([], "received nothing"),
    ]:
        with pytest.raises(OfferRejected, match=told):
            decode(iter(wrong))
    message.whole = -6
    with pytest.raises(OfferRejected, match="at least -5"):
        decode(iter(changed(content=message.SerializeToString())))
    message.way = 9
    with pytest.raises(OfferRejected, match="value 9 is not known"):
        decode(iter(changed(content=message.SerializeToString())))
    message.names.extend([""] * MAX_OBJECTS)
    with pytest.raises(OfferRejected, match="elements"):
        decode(iter(changed(content=message.SerializeToString())))


@dataclass(frozen=True)
class Endless:
    inner: tuple[Endless, ...]


@dataclass(frozen=True)
class Anything:
    value: object


@dataclass(frozen=True)
class Tables:
    rows: Annotated[int, Within(1, 5)]
    way: Way


def test_types_that_do_not_travel_are_an_error_at_once() -> None:
    for kind in (Endless, Anything):
        with pytest.raises(TypeError, match=r"contain itself|does not travel"):
            codec_of(kind)
    with pytest.raises(TypeError, match="a job file has no such values"):
        extension.parameters_message(Tables)


JOB = 'strategy = "random-forest"\nmin_silos = 3\n[random-forest]\nrounds = 4\nfeatures = 1\n'


def test_a_package_has_its_table_in_job_files_and_in_their_reference() -> None:
    forest = plugin.installed()
    spec = job_file.parse(JOB)
    job = job_wire.decode_known(spec)
    assert job.parameters == forest.RandomForest(rounds=4, features=1.0)
    assert job.strategy is strategy_of("random-forest") is forest.STRATEGY
    assert job_file.parse(job_file.dump(spec)) == spec
    assert {key.key for key in keys_of("random-forest") if key.table == "random-forest"} == {
        "rounds", "trees", "features"
    }  # fmt: skip
    for text, told in [
        (JOB.replace("rounds", "round"), r"unknown key random-forest\.round; did you mean rounds"),
        (JOB.replace("rounds = 4", "rounds = true"), "expected a number, received True"),
        (JOB + "[bagging]\nrounds = 1\n", r"the job has a table \[bagging\]"),
        (JOB + "[extension]\n", "unknown key extension"),
        (
            JOB.replace('"random-forest"', '"random-forst"'),
            "did you mean random-forest",
        ),
    ]:
        with pytest.raises(InvalidJob, match=told):
            job_file.parse(text)


def test_parameters_of_another_version_or_strategy_are_refused() -> None:
    plugin.installed()
    spec = job_pb2.JobSpec.FromString(job_file.parse(JOB))
    for change, told in [
        (b"\xa0\x38\x01", "random-forest has parameters that this version does not know"),
        (b"\xff", "is not one of its parameters"),
    ]:
        newer = job_pb2.JobSpec.FromString(spec.SerializeToString())
        newer.extension.parameters += change
        with pytest.raises(InvalidJob, match=told):
            job_wire.decode_known(newer.SerializeToString())
    for other in ("other-forest", "bagging"):
        newer = job_pb2.JobSpec.FromString(spec.SerializeToString())
        newer.extension.strategy = other
        with pytest.raises(InvalidJob, match="but the job has a table"):
            job_wire.decode(newer.SerializeToString())


def test_a_silo_runs_a_package_only_where_its_policy_names_it() -> None:
    plugin.installed()
    spec = job_file.parse(JOB)
    with pytest.raises(PolicyDeclined, match="random-forest is of another package"):
        job_wire.decode_known(spec, Policy().check_packages)
    with pytest.raises(PolicyDeclined, match="random-forest is not among bagging"):
        job_wire.decode_known(spec, Policy(strategies=("bagging",)).check_packages)
    job_wire.decode_known(spec, Policy(strategies=("random-forest",)).check_packages)
    with pytest.raises(ValueError, match="not installed here"):
        Policy(strategies=("acme-trees",))


def test_what_is_not_installed_or_not_sound_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidJob, match="a package of its own, which is not installed here"):
        job_file.parse('strategy = "acme-trees"')
    monkeypatch.setattr(sys, "path", [*sys.path])
    try:
        (tmp_path / "acme_broken.py").write_text("raise RuntimeError('no licence')\n")
        (tmp_path / "acme_other.py").write_text("STRATEGY = 3\n")
        plugin.entry(tmp_path, "acme-broken", "acme-broken", "acme_broken:STRATEGY")
        plugin.entry(tmp_path, "acme-other", "acme-other", "acme_other:STRATEGY")
        plugin.entry(tmp_path, "acme-evil", "bagging", "acme_other:STRATEGY")
        plugin.entry(tmp_path / "a", "acme-a", "acme-twice", "acme_other:STRATEGY")
        plugin.entry(tmp_path / "b", "acme-b", "acme-twice", "acme_broken:STRATEGY")
        assert "acme-broken" in registry.STRATEGIES.installed()
        for name, told in [
            ("acme-broken", "cannot be loaded: RuntimeError: no licence"),
            ("acme-other", "acme_other:STRATEGY is no Strategy"),
            ("acme-twice", "shipped by several installed packages"),
        ]:
            with pytest.raises(InvalidJob, match=told):
                strategy_of(name)
        assert strategy_of("bagging").reveals
    finally:
        monkeypatch.undo()
        registry._shipped.cache_clear()
