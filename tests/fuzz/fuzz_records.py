"""Fuzz what the parties keep or pass on: records, ledgers, schemas, parts, checkpoints, boxes.

``python -m tests.fuzz.fuzz_records -max_total_time=60`` (libFuzzer's options). An input that raises
anything but the stated refusals, or a damaged record that is taken for another, is a finding.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import atheris
import numpy as np

with atheris.instrument_imports(include=["hedgerow"]):
    from hedgerow.boosting import checkpoints
    from hedgerow.boosting.budget import Spending
    from hedgerow.boosting.errors import DataError, InvalidJob, OfferRejected
    from hedgerow.boosting.exchange import ExchangeKey
    from hedgerow.boosting.strategies.fedga.checkpoint import SearchState
    from hedgerow.boosting.strategies.secureboost import steps
    from hedgerow.boosting.strategies.secureboost.courier import SealedChannel, padded
    from hedgerow.boosting.strategies.secureboost.model import (
        ActivePart,
        PassivePart,
        TreeStructure,
        load_part,
    )
    from hedgerow.client_agent.accountant import AccountDamaged, TableAccount, read_accounts
    from hedgerow.client_agent.records import RecordDamaged, Records
    from hedgerow.crypto.masking.key_agreement import encode_fields, expand, seal
    from hedgerow.services.identity.authority import throwaway
    from hedgerow.services.identity.peers import FileIdentity
    from hedgerow.services.process import ledgers
    from hedgerow.services.wire import BoxCodec
    from hedgerow.services.wire import provenance as provenance_wire
    from hedgerow.services.wire import schema as schema_wire
    from hedgerow.services.wire.signed_job import LABEL, OpenedJob, SignedJob, open_job, sign_job
from tests.boosting.trees.ensembles import KINDS
from tests.boosting.trees.ensembles import schema as schema_of
from tests.fuzz.running import Provider, altered, changed, fuzz

# A record is flushed to the disk many times a second: in memory, where there is such a folder.
MEMORY = Path("/dev/shm")
FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-", dir=MEMORY if MEMORY.is_dir() else None))
VALUES = (b"", b"first", b"second" * 40)


def record(provider: Provider) -> None:
    """Damage the slots and the counter of a record: the newest is read, or the damage is named."""
    folders = [FOLDER / "memory", FOLDER / "turns"]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    records = Records(*folders, bytes(32))
    written: bytes | None = None
    try:
        for value in VALUES[: provider.ConsumeIntInRange(0, 3)]:
            records.write("record", value)
            written = value
        for file in sorted(path for folder in folders for path in folder.glob("record*")):
            if provider.ConsumeBool():
                file.write_bytes(changed(file.read_bytes(), provider))
        assert records.read("record") == written
        records.write("record", b"after")
        assert records.read("record") == b"after"
    except RecordDamaged:
        return


def line(previous: str, fields: dict[str, Any]) -> tuple[str, bytes]:
    return ledgers.line_of(previous, fields)


ENTRY: dict[str, Any] = {
    "time": 1.5, "silo": "ash", "peer": "coordinator", "job": "j", "round": 0, "level": 0,
    "passing": 0, "step": "trees", "call": "ExchangeTrees", "kind": "TreeOffer", "bytes": 9,
    "sha256": "0" * 64, "reveals": "trees",
}  # fmt: skip
for _field in ledgers.Entry.__dataclass_fields__:
    ENTRY.setdefault(_field, 1 if _field == "count" else "trees")


def ledger(provider: Provider) -> None:
    """Damage a ledger and its head; some lines are sound of chain and odd of content."""
    chain, lines = ledgers.FIRST, []
    for _ in range(provider.ConsumeIntInRange(0, 3)):
        fields = altered(ENTRY, provider) if provider.ConsumeBool() else ENTRY
        try:
            chain, written = line(chain, fields)
        except (TypeError, ValueError):
            return
        lines.append(written)
    path = FOLDER / "ledger.jsonl"
    path.write_bytes(changed(b"".join(lines), provider) + bytes(provider.ConsumeIntInRange(0, 2)))
    head = ledgers.head_of(path)
    head.write_bytes(changed(f"{len(lines):020} {chain}\n".encode(), provider))
    try:
        found = ledgers.verify(path)
    except ledgers.LedgerBroken:
        return
    ledgers.totals(found.entries)


SCHEMA = schema_wire.dump(schema_of(KINDS[3]))


def schema(provider: Provider) -> None:
    """Read a schema's file."""
    raw = changed(SCHEMA, provider)
    if provider.ConsumeBool():
        raw = json.dumps(altered(json.loads(SCHEMA), provider)).encode()
    try:
        found = schema_wire.load(raw)
    except OfferRejected:
        return
    assert schema_wire.load(schema_wire.dump(found)) == found


ACTIVE = ActivePart(
    "guest", ["guest", "host"], "m", "binary:logistic", "binary:logistic", "binary", 1, 0.0,
    ["a"], {}, "label", [],
    [TreeStructure(0, [0], [1, -1, 3, -1, -1], [0, -1, 1, -1, -1], [0] * 5, [0.5] * 5, [False] * 5,
              [[0.0]] * 5, [0.0] * 5, [1.0] * 5)],
).dump()  # fmt: skip
PASSIVE = PassivePart(
    "host", "m", ["b"], {}, {"0:2": [3, 0, 0.5, True]}, {"0:3": "other"}, "", [1], 1, 1
).dump()


def part(provider: Provider) -> None:
    """Read a party's part of a vertical model."""
    valid = (ACTIVE, PASSIVE)[provider.ConsumeIntInRange(0, 1)]
    raw = changed(valid, provider)
    if provider.ConsumeIntInRange(0, 3):
        raw = json.dumps(altered(json.loads(valid), provider)).encode()
    try:
        found = load_part(raw)
    except DataError:
        return
    found.importance()
    found.dump()


SEARCH = SearchState().encode()


def search(provider: Provider) -> None:
    """Read FedGA's checkpoint."""
    arrays, about = checkpoints.load(SEARCH)
    raw = changed(SEARCH, provider)
    if provider.ConsumeBool():
        try:
            raw = checkpoints.dump(arrays, altered(about, provider))
        except ValueError:
            return
    try:
        SearchState.decode(raw).encode()
    except DataError:
        return


ROOT, CODEC = bytes(range(32)), BoxCodec()
CONTENTS = (
    steps.LeftRows(b"\x05", (1, 2), (0, 3)),
    steps.CandidateCount(7, b"\x02", b"\x40", b"\x60\x01", (2, 3), b"\x80"),
    steps.RowsAtNodes(*(np.arange(3, dtype=np.int32) for _ in range(4))),
    steps.LevelDivisions(
        (steps.NodeDivision(0, 1, (2,), (steps.CategorySet(1, (1,), True, False),)),), b"\x01"
    ),
    steps.RowDigest(bytes(32)),
    steps.ModelState(bytes(32), 3, 2),
)


class Reply:
    """A relay that answers with what the other party is said to have sent."""

    def __init__(self, reply: steps.RelayPass) -> None:
        self.reply = reply

    def exchange(self, step: Any, at: ExchangeKey, offer: Any) -> steps.RelayPass:
        """Answer."""
        return self.reply


def parcel(provider: Provider) -> None:
    """Open what a party sealed, damaged before or after: the refusal names the party."""
    content = CONTENTS[provider.ConsumeIntInRange(0, len(CONTENTS) - 1)]
    plain = changed(CODEC.dump(content), provider)
    framed = padded(plain)
    if provider.ConsumeBool():
        framed = changed(framed[:64], provider) + framed[64:]
    key = expand(ROOT, encode_fields("box", "host", "guest"))
    where = encode_fields(b"job", steps.SPLITS.name, 0, 0, "host", "guest")
    box = seal(key, framed, where, lambda n: bytes(n))
    if not provider.ConsumeIntInRange(0, 3):
        box = changed(box, provider)
    cut = provider.ConsumeIntInRange(0, len(box))
    pieces: list[Any] = [steps.SealedPiece("host", box[:cut]), steps.SealedPiece("host", box[cut:])]
    number = provider.ConsumeIntInRange(0, 3)
    pieces += [steps.CiphertextPiece("host", k * number, b"\1" * 8) for k in range(number)]
    note = steps.PassNote(then=steps.StepName.BITMAPS)
    courier = SealedChannel(
        Reply(steps.RelayPass(tuple(pieces), note)), "guest", b"job", CODEC, bytes
    )  # type: ignore[arg-type]
    courier.keys = {"host": ROOT}
    kind = type(CONTENTS[provider.ConsumeIntInRange(0, len(CONTENTS) - 1)])
    try:
        received = courier.send(steps.SPLITS)
        received.read("host", kind)
    except OfferRejected as refusal:
        if "host" not in str(refusal):
            raise AssertionError("a refusal that names nobody") from refusal


OPERATOR = FileIdentity(throwaway(FOLDER / "pki", [], time.time())["operator"])
JOB = open_job(sign_job(b"", OPERATOR), OPERATOR)


def statement(provider: Provider) -> None:
    """Read a statement that an operator's faulty client has signed."""
    raw = changed(JOB.signed.statement, provider)
    signed = SignedJob(raw, OPERATOR.sign(LABEL + raw), OPERATOR.certificate)
    try:
        assert isinstance(open_job(signed, OPERATOR), OpenedJob)
    except (InvalidJob, OfferRejected):
        return


SPENT = FOLDER / "spent"
for _number in range(2):
    TableAccount(SPENT, "table", 4.0).admit("job", 2.0).charge(
        {str(_number): Spending("counts", 0.5, 1, 8)}
    )
ACCOUNTS = sorted((SPENT / "privacy").iterdir())
WHOLE = ACCOUNTS[0].read_bytes()


def accounts(provider: Provider) -> None:
    """Damage the privacy account: it is read whole, or refused; also where its digest is sound."""
    files, whole, body = ACCOUNTS, WHOLE, json.loads(WHOLE)
    for file in files:
        file.write_bytes(whole)
    if provider.ConsumeBool():
        del body["sha256"]
        body = altered(body, provider)
        if not isinstance(body, dict):
            return
        text = json.dumps(body, sort_keys=True).encode()
        files[0].write_bytes(json.dumps(body | {"sha256": sha256(text).hexdigest()}).encode())
        files[1].write_bytes(files[0].read_bytes())
    else:
        files[provider.ConsumeIntInRange(0, 1)].write_bytes(changed(whole, provider))
    try:
        found = read_accounts(SPENT)
    except AccountDamaged:
        return
    found.summary()
    if "format" in body and "sha256" in body:
        assert found.tables["table"]["job"].spent == 1


STATED = provenance_wire.RunStatement(
    "s0", "job", "0" * 64, "1" * 64, "operator", ("s0", "s1"), {"model.ubj": "2" * 64}, "3" * 64,
    {"hedgerow": "1"},
)  # fmt: skip
ENVELOPE = provenance_wire.Envelope(STATED.payload(), b"signature", b"certificate").line()


def provenance(provider: Provider) -> None:
    """Read a silo's statement of a run: what is read is written as the same bytes."""
    raw = changed(ENVELOPE, provider)
    if provider.ConsumeBool():
        payload = json.dumps(altered(json.loads(STATED.payload()), provider)).encode()
        raw = provenance_wire.Envelope(payload, b"signature", b"certificate").line()
    try:
        envelope = provenance_wire.Envelope.read(raw)
        found = provenance_wire.RunStatement.read(envelope.payload)
    except DataError:
        return
    assert envelope.line() == raw
    assert found.payload() == envelope.payload
    assert provenance_wire.stated_by(raw) == found.silo


TARGETS = {
    "accounts": accounts,
    "provenance": provenance,
    "statement": statement,
    "record": record,
    "ledger": ledger,
    "schema": schema,
    "part": part,
    "search": search,
    "parcel": parcel,
}

if __name__ == "__main__":
    fuzz(TARGETS, "-len_control=0", "-max_len=1024")
