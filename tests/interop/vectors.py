"""The test vectors of docs/wire.md; ``python -m tests.interop.vectors`` writes them.

Bytes are hexadecimal digits. Numbers that JavaScript cannot hold exactly (64-bit residues) are
decimal texts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.exchange import ExchangeKey, Silo
from hedgerow.boosting.rounds.steps import GENESIS, TreeRound, extend_digest
from hedgerow.boosting.sums.exact import exact_parts
from hedgerow.boosting.sums.steps import (
    KeyOffer,
    SumParameters,
    kem_statement,
    key_digest,
    key_statement,
    session_name,
)
from hedgerow.boosting.sums.view import state_digest, sum_view
from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.boosting.trees.golomb import ColumnWriter, ordinal
from hedgerow.boosting.trees.packing import Shrinkage, pack
from hedgerow.crypto.masking import key_agreement, keystream, masks, shamir, totals
from hedgerow.crypto.masking.fields import BitFields
from hedgerow.crypto.masking.fixed_point import pack as pack_residues
from hedgerow.crypto.masking.key_agreement import encode_fields
from hedgerow.services.wire.acceptance import accept_message
from hedgerow.services.wire.scores import pack_sums
from hedgerow.services.wire.signed_job import (
    APPROVAL_LABEL,
    LABEL,
    JobStatement,
    SignedJob,
    SignedSite,
    site_message,
)
from tests.interop.bad_vectors import bad_packs, bad_payloads
from tests.interop.moduli import FORGED, forged, good_key

FOLDER = Path(__file__).resolve().parents[2] / "docs/wire-vectors"

NAMES = ("ash", "birch", "cedar")


def fixed(label: str, n_bytes: int = 32) -> bytes:
    """Return bytes that look random and are always the same."""
    return hashlib.shake_128(label.encode()).digest(n_bytes)


def vectors() -> dict[str, Any]:
    """Return the document of each file, by name."""
    return {
        "bad-payloads": bad_payloads(),
        "bad-trees": bad_packs(),
        "signed-job": _signed_job(),
        "joint-job": _joint_job(),
        "acceptance": _acceptance(),
        "columns": _columns(),
        "trees": _trees(),
        "tree-digest": _digests(),
        "score-sums": _score_sums(),
        "residues": _residues(),
        "fields": _fields(),
        "node-totals": _node_totals(),
        "exact-sums": _exact_sums(),
        "secure-sum": _secure_sum(),
        "paillier-modulus": _paillier_modulus(),
    }


def _paillier_modulus() -> Any:
    key = good_key(2048)
    return {
        "p": hex(key.p),
        "q": hex(key.q),
        "public_key": key.certified_bytes().hex(),
        "bad_public_keys": {kind: forged(kind, 2048)[0].hex() for kind in FORGED},
    }


JOB = JobStatement("trial", fixed("nonce", 16), fixed("spec", 40), 1_800_000_000.0, 1)


def _signed_job() -> Any:
    statement = JOB.serialise()
    return {
        "federation": JOB.federation,
        "nonce": JOB.nonce.hex(),
        "job_id": JOB.job_id,
        "spec": JOB.spec.hex(),
        "not_after": int(JOB.not_after),
        "view_version": JOB.view_version,
        "statement": statement.hex(),
        "message": (LABEL + statement).hex(),
        "job_digest": SignedJob(statement, b"", b"").digest.hex(),
        "approval": (
            APPROVAL_LABEL + SignedJob(statement, b"", b"").digest + hashlib.sha256(b"").digest()
        ).hex(),
    }


def _joint_job() -> Any:
    sites = tuple(SignedSite(name, fixed(name, 16)) for name in ("south", "north", "west"))
    whole = replace(JOB, sites=sites, turn=2).of_sites
    statement = whole.serialise()
    return {
        "sites": [{"silo": one.silo, "nonce": one.nonce.hex()} for one in sites],
        "turn": whole.turn,
        "without_nonce": replace(whole, nonce=b"").serialise().hex(),
        "nonce": whole.nonce.hex(),
        "statement": statement.hex(),
        "messages": {one.silo: site_message(statement, one.silo).hex() for one in sites},
    }


def _acceptance() -> Any:
    digest = SignedJob(JOB.serialise(), b"", b"").digest
    message = accept_message(JOB.job_id, digest)
    return {"job_id": JOB.job_id, "job_digest": digest.hex(), "message": message.hex()}


def _columns() -> Any:
    integers = {
        "zeros": [0, 0, 0],
        "nothing": [],
        "even": [9, 8, 11, 10, 9, 12, 7],
        "skewed": [0, 0, 1, 0, 0, 0, 5000, 0, 2, 0, 0, 0, 1, 0],
        "wide": [1 << 33, 3, (1 << 33) + 7],
    }
    floats = {
        "halves": [0.5, -0.25, 1.5, 0.0, -0.0],
        "any": [0.1, -3.4e38, 1e-30, 7.0],
        "nothing": [],
    }
    out: dict[str, Any] = {"integers": [], "floats": []}
    first = np.array([1, 0, 1], np.bool_)
    for name, values in integers.items():
        writer = ColumnWriter(bytearray(b"\xaa"), first)
        writer.plain(np.array([5, 2]), 3)
        writer.golomb(np.array(values, np.int64))
        out["integers"].append({"name": name, "values": values, "bytes": writer.done().hex()})
    for name, numbers in floats.items():
        writer = ColumnWriter(bytearray(b"\xaa"), first)
        writer.floats(np.array(numbers, np.float32))
        out["floats"].append(
            {"name": name, "values": _floats(numbers), "bytes": writer.done().hex()}
        )
    samples = [0.0, -0.0, 1.0, -1.0, 1.5, 3.4e38]
    out["ordinals"] = {
        "values": _floats(samples),
        "ordinals": ordinal(np.array(samples, np.float32)).tolist(),
    }
    return out


def _tree(
    left: Sequence[int],
    right: Sequence[int],
    feature: Sequence[int],
    threshold: Sequence[float],
    *,
    default: Sequence[bool] = (),
    stats: tuple[Sequence[float], Sequence[float], Sequence[float]] | None = None,
    categories: Sequence[tuple[int, Sequence[int]]] = (),
    group: int = 0,
) -> Tree:
    n = len(left)
    zeros = [0.0] * n
    gain, cover, weight = stats or (zeros, zeros, zeros)
    return Tree(
        np.array(left, np.int32),
        np.array(right, np.int32),
        np.array(feature, np.int32),
        np.array(threshold, np.float32),
        np.array(default or [False] * n, np.bool_),
        np.array(gain, np.float32),
        np.array(cover, np.float32),
        np.array(weight, np.float32),
        tuple((node, np.array(codes, np.int32)) for node, codes in categories),
        group,
    )


def _stump(group: int = 0) -> Tree:
    return _tree([1, -1, -1], [2, -1, -1], [2, 0, 0], [0.75, -0.1, 0.2], group=group)


def _trees() -> Any:
    deeper = _tree(
        [1, 3, -1, -1, -1],
        [2, 4, -1, -1, -1],
        [1, 0, 0, 0, 0],
        [-2.5, 0.75, 0.03125, -0.5, 0.25],
        default=[True, False, False, False, False],
    )
    counted = _tree(
        [1, -1, -1],
        [2, -1, -1],
        [0, 0, 0],
        [1.25, -0.15, 0.3],
        stats=([6.5, 0.0, 0.0], [10.0, 6.0, 4.0], [0.02, -0.5, 1.0]),
    )
    categorical = _tree(
        [1, -1, -1], [2, -1, -1], [3, 0, 0], [0.0, 1.0, -1.0], categories=[(0, [1, 4, 5])]
    )
    scattered = _tree(
        [2, -1, 3, -1, -1], [1, -1, 4, -1, -1], [0, 0, 1, 0, 0], [1.0, 2.0, 4.0, 3.0, 5.0]
    )
    cases: list[tuple[str, list[Tree], Shrinkage]] = [
        ("no trees", [], Shrinkage()),
        ("a stump", [_stump()], Shrinkage()),
        ("two classes' stumps", [_stump(), _stump(1)], Shrinkage()),
        ("two levels, a default direction", [deeper, _stump()], Shrinkage()),
        ("a single leaf", [_tree([-1], [-1], [0], [0.5])], Shrinkage()),
        ("statistics", [counted], Shrinkage(0.3, 1.0, 0.0)),
        ("a categorical split", [categorical], Shrinkage()),
        ("children out of the usual order", [scattered], Shrinkage()),
    ]
    return [
        {
            "name": name,
            "trees": [_tree_document(tree) for tree in trees],
            "shrinkage": [by.eta, by.lambda_, by.alpha],
            "bytes": pack(trees, by).hex(),
        }
        for name, trees, by in cases
    ]


def _tree_document(tree: Tree) -> Any:
    return {
        "group": tree.group,
        "left": tree.left.tolist(),
        "right": tree.right.tolist(),
        "feature": tree.feature.tolist(),
        "threshold": _floats(tree.threshold),
        "default_left": tree.default_left.tolist(),
        "gain": _floats(tree.gain),
        "cover": _floats(tree.cover),
        "weight": _floats(tree.weight),
        "categories": [[node, codes.tolist()] for node, codes in tree.categories],
    }


def _digests() -> Any:
    stump = pack([_stump()])
    rounds = [
        TreeRound.of(1, [(Silo("ash"), 1.0, stump), (Silo("birch"), 0.5, stump)]),
        TreeRound(1),
        TreeRound.of(2, [(Silo("öland"), 1.0, b"")]),
    ]
    out = []
    digest = GENESIS
    for added in rounds:
        digest = extend_digest(digest, added)
        columns = {name: getattr(added, name) for name in ("steps", "silos", "factors", "sizes")}
        out.append(columns | {"data": added.data.hex(), "digest": digest.hex()})
    return {"genesis": GENESIS.hex(), "rounds": out}


def _score_sums() -> Any:
    cases = {
        "nothing": [],
        "counts": [0.0, 0.0, 3.0, 1.0, 0.0, 12.0, 0.0],
        "a loss": [12.375, 100.0],
        "signs": [-1.0, 0.1, 2.0, -0.0],
    }
    return [
        {"name": name, "values": values, "bytes": pack_sums(np.array(values, np.float64)).hex()}
        for name, values in cases.items()
    ]


def _residues() -> Any:
    out = []
    for ring_bits, values in (
        (32, [0, 1, 2**32 - 1]),
        (48, [0, 1, 2**48 - 1]),
        (64, [0, 1, 2**64 - 1]),
    ):
        dtype = np.uint32 if ring_bits == 32 else np.uint64
        packed = bytes(pack_residues(np.array(values, dtype), ring_bits))
        out.append({"ring_bits": ring_bits, "values": _texts(values), "bytes": packed.hex()})
    return out


def _node_totals() -> Any:
    """The words of three silos, and the totals that their sum checks."""
    silos = ("ash", "birch", "cedar")
    session, view = "job-1/1/0.0.0", fixed("view")
    key = totals.totals_key(fixed("group key"), session)
    parts = {"ash": [5, -(1 << 40), 7], "birch": [0, 3, (1 << 62)], "cedar": [-9, 1, 2]}
    sums = np.array([sum(each) for each in zip(*parts.values(), strict=True)], np.int64)
    checks, words, word = {}, {}, {}
    for kind in (totals.TotalsCheck, totals.ResiduesCheck):
        checks[kind] = kind(key, view, silos, len(sums))
        words[kind] = {
            silo: checks[kind].word(silo, np.array(own, np.int64)) for silo, own in parts.items()
        }
        word[kind] = [sum(each) % 2**64 for each in zip(*words[kind].values(), strict=True)]
        assert checks[kind].holds(sums, np.array(word[kind], np.uint64).view(np.int64), silos)
    of_integers, of_residues = totals.TotalsCheck, totals.ResiduesCheck
    return {
        "group_key": fixed("group key").hex(),
        "session": session,
        "key": key.hex(),
        "view": view.hex(),
        "silos": list(silos),
        "parts": {silo: _texts(own) for silo, own in parts.items()},
        "words": words[of_integers],
        "totals": _texts(sums.tolist()),
        "word": word[of_integers],
        "residue_words": {silo: _texts(own) for silo, own in words[of_residues].items()},
        "residue_word": _texts(word[of_residues]),
    }


def _fields() -> Any:
    """Packed fields of two columns, and with a mask added and another subtracted."""
    fields = BitFields(np.array([[29, 27], [64, 0], [1, 40]], np.uint8), np.array([3, 1, 2]))
    rows = np.array([[-1, 0], [1 << 27, 5], [-(1 << 28), (1 << 27) - 1], [-2, 0], [0, 1], [-1, 7]])
    words = fields.pack(rows, np.arange(len(rows)), rows[:0])
    add, subtract = fixed("added"), fixed("subtracted")
    masked = masks.masked(words, fields, [add], [subtract])
    state = fixed("state")
    view = sum_view(fixed("job"), "histograms", ExchangeKey(1, 2), fields.n_words, fields, state)
    return {
        "widths": fields.widths.tolist(),
        "counts": fields.counts.tolist(),
        "rows": [_texts(row) for row in rows.tolist()],
        "bytes": words.tobytes().hex(),
        "add": add.hex(),
        "subtract": subtract.hex(),
        "masked": masked.tobytes().hex(),
        "view": {
            "job": fixed("job").hex(),
            "step": "histograms",
            "place": [1, 2, 0],
            "state": state.hex(),
            "bytes": view.hex(),
        },
    }


def _exact_sums() -> Any:
    columns = [[0.1, -2.5, 1e6], [1.0, 1.0, 1.0], [-3.25, 0.0, 1e-50]]
    parts = exact_parts(*(np.array(column) for column in columns))
    return {"columns": columns, "residues": _texts(parts.tolist())}


def _hybrid(
    offers: dict[Silo, KeyOffer], keys: dict[Silo, Any], session: str, statements: dict[Silo, str]
) -> Any:
    """The same silos with ML-KEM keys; ciphertexts and their secrets are arbitrary bytes."""
    kem = {silo: fixed(f"ML-KEM seed {silo}", 64) for silo in offers}
    kem_keys = {
        silo: key.public_key().public_bytes_raw()
        for silo, seed in kem.items()
        if (key := key_agreement.new_kem_key(lambda n, seed=seed: seed))  # type: ignore[misc]
    }
    hybrid = {
        silo: replace(
            offer, kem_key=kem_keys[silo], kem_signature=fixed(f"ML-KEM signature {silo}", 70)
        )
        for silo, offer in offers.items()
    }
    digest = key_digest(session, hybrid)
    ash, birch = sorted(offers)[:2]
    shared = key_agreement.shared_secret(keys[ash], offers[birch].public_key)
    both = {
        silo: (fixed(f"ML-KEM secret {silo}"), fixed(f"ciphertext {silo}", 1088))
        for silo in (ash, birch)
    }
    return {
        "silos": [
            {
                "silo": silo,
                "kem_seed": kem[silo].hex(),
                "kem_key": kem_keys[silo].hex(),
                "kem_statement": kem_statement(
                    bytes.fromhex(statements[silo]), kem_keys[silo]
                ).hex(),
                "kem_signature": hybrid[silo].kem_signature.hex(),
            }
            for silo in offers
        ],
        "key_digest": digest.hex(),
        "encapsulated": [
            {"sender": silo, "secret": secret.hex(), "ciphertext": ciphertext.hex()}
            for silo, (secret, ciphertext) in both.items()
        ],
        "box_root_ash_birch": key_agreement.hybrid_box_root(
            digest, shared, ash, birch, *both[ash]
        ).hex(),
        "root_ash_birch": key_agreement.hybrid_pair_root(digest, shared, both).hex(),
    }


def _secure_sum() -> Any:
    """Three silos, one sum; signatures and boxes' nonces are arbitrary bytes."""
    at = ExchangeKey(0)
    job_id, attempt, ring_bits = "0123abcd", 1, 64
    roster = tuple(Silo(name) for name in NAMES)
    session = session_name(job_id, attempt, at)
    parameters = SumParameters(batch=1)
    threshold = parameters.threshold_of(len(roster))
    keys = {
        silo: key_agreement.new_private_key(lambda n, silo=silo: fixed(f"key {silo}", n))  # type: ignore[misc]
        for silo in roster
    }
    public = {silo: key_agreement.public_bytes(key) for silo, key in keys.items()}
    offers = {
        silo: KeyOffer(public[silo], b"a certificate", fixed(f"signature {silo}", 70))
        for silo in roster
    }
    jobs = ("a job", "another job")
    said_of_rows: dict[str, Any] = {"empty": True, "few": True, "changed": jobs, "differing": jobs}
    statements = {
        silo: key_statement(session, roster, (roster,), parameters, silo, offers[silo]).hex()
        for silo in roster
    }
    digest = key_digest(session, offers)
    values = {silo: [k, 2**64 - 1 - k, 7] for k, silo in enumerate(roster)}
    schema = Schema(
        (Feature("age"), Feature("colour", ("blue", "red"))), "label", Task.BINARY, 2, ("no", "yes")
    )
    state, job = state_digest(schema), fixed("job")
    view = sum_view(job, "sum", at, 3, ring_bits, state)
    context = masks.sum_context(session, 0, view)
    roots = {
        (a, b): key_agreement.extract(digest, key_agreement.shared_secret(keys[a], public[b]))
        for a in roster
        for b in roster
        if a != b
    }
    box_key = key_agreement.expand(roots["ash", "birch"], encode_fields("box", "ash", "birch"))  # type: ignore[index]
    box_context = encode_fields("hedgerow shares v1", session, 0, 1, "ash", "birch")
    share = fixed("share")[:31] + b"\0"
    nonce = fixed("nonce", 12)
    box = key_agreement.seal(box_key, share, box_context, lambda n: nonce)
    silos = []
    masked_vectors = []
    self_seeds = []
    for me, silo in enumerate(roster):
        secret = fixed(f"self mask {silo}")[:31] + b"\0"
        shares = shamir.split(
            [secret],
            threshold,
            len(roster),
            lambda n, silo=silo: fixed(f"poly {silo}", n),  # type: ignore[misc]
        )
        seeds = [masks.pair_seed(roots[silo, peer], context) for peer in roster if peer != silo]
        self_seed = masks.self_seed(secret, context)
        masked = masks.masked(
            np.array(values[silo], np.uint64), ring_bits, [*seeds[me:], self_seed], seeds[:me]
        )
        masked_vectors.append(masked)
        self_seeds.append(self_seed)
        silos.append(
            {
                "silo": silo,
                "private_key": keys[silo].private_bytes_raw().hex(),
                "public_key": public[silo].hex(),
                "statement": statements[silo],
                "signature": offers[silo].signature.hex(),
                "self_mask": secret.hex(),
                "shares": [own[0].hex() for own in shares],
                "commitment": masks.commitment(secret, context).hex(),
                "pair_seeds": [seed.hex() for seed in seeds],
                "self_seed": self_seed.hex(),
                "values": _texts(values[silo]),
                "masked": _texts(masked.tolist()),
            }
        )
    hybrid = _hybrid(offers, keys, session, statements)
    total = masks.summed(masked_vectors, 3, ring_bits)
    opened = masks.unmasked(total, ring_bits, self_seeds)
    return {
        "fields": {"encoded": encode_fields("ash", b"\x00\xff", 0, -12, "").hex()},
        "job_id": job_id,
        "attempt": attempt,
        "roster": list(roster),
        "groups": [list(roster)],
        "parameters": {
            "threshold": 0,
            "batch": parameters.batch,
            "least_silos": parameters.least_silos,
            "dropout_recovery": 1,
            "blind_coordinator": 0,
        },
        "threshold": threshold,
        "session": session,
        "key_digest": digest.hex(),
        "view": {
            "job": job.hex(),
            "schema": {
                "features": [
                    {"name": "age", "categorical": False, "categories": []},
                    {"name": "colour", "categorical": True, "categories": ["blue", "red"]},
                ],
                "label": "label",
                "task": "TASK_BINARY",
                "n_classes": 2,
                "classes": ["no", "yes"],
            },
            "state": state.hex(),
            "view": view.hex(),
        },
        "hybrid": hybrid,
        "companions": {
            "silo": roster[0],
            "companions": list(roster),
            "statement": key_statement(
                session,
                roster,
                (roster,),
                parameters,
                roster[0],
                replace(offers[roster[0]], companions=roster),
            ).hex(),
        },
        "rows": {
            said: key_statement(
                session,
                roster,
                (roster,),
                parameters,
                roster[0],
                replace(offers[roster[0]], **{said: what}),
            ).hex()
            for said, what in said_of_rows.items()
        },
        "context": context.hex(),
        "root_ash_birch": roots[roster[0], roster[1]].hex(),
        "box": {
            "sender": "ash",
            "receiver": "birch",
            "key": box_key.hex(),
            "associated": box_context.hex(),
            "nonce": nonce.hex(),
            "plaintext": share.hex(),
            "bytes": box.hex(),
            "commitment": masks.share_commitments(session, 0, "ash", "birch", [share]).hex(),
        },
        "keystream": {
            "key": fixed("stream").hex(),
            "bytes": keystream.keystream(fixed("stream"), 40).hex(),
        },
        "set_statement": masks.set_statement(digest, context, roster, roster).hex(),
        "silos": silos,
        "sum": _texts(opened.tolist()),
    }


def _floats(values: Any) -> list[float]:
    """Return float32 as the shortest decimals that are theirs."""
    return [float(str(np.float32(value))) for value in values]


def _texts(values: Sequence[int]) -> list[str]:
    return [str(value) for value in values]


def text_of(document: Any) -> str:
    """Return a document as it is in its file."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for name, document in vectors().items():
        (FOLDER / f"{name}.json").write_text(text_of(document), encoding="utf-8")


if __name__ == "__main__":
    main()
