"""Scores on request: a server, a coordinator and the other parties' agents as processes."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
import xgboost as xgb
from click.testing import CliRunner
from google.protobuf.struct_pb2 import Struct

import hedgerow
from hedgerow.api.serving.v1 import scoring_service_pb2 as pb
from hedgerow.services.process.ledgers import read, verify
from hedgerow.serving import main as serve
from tests.coordinator.operator.library.tables import people
from tests.federation import vertical
from tests.federation.processes import wait_until
from tests.federation.serving import ACTIVE, ServingFederation, digest, serving
from tests.federation.test_audit_trail import lines_of, told
from tests.federation.test_secureboost_rows import begun


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingFederation]:
    with serving(tmp_path_factory.mktemp("serving")) as made:
        wait_until(lambda: made.ask("/readyz")[0] == 200, 60, "all parties are there")
        yield made


def test_scores_are_those_of_the_joined_model(federation: ServingFederation) -> None:
    assert federation.whole.ids is not None
    ids = federation.whole.ids[:40].tolist()
    code, found = federation.predict(*ids)
    assert code == 200, found
    np.testing.assert_allclose(found["predictions"], federation.expected(ids), atol=1e-6)


def test_a_caller_does_not_learn_which_party_has_no_row_and_the_others_are_scored(
    federation: ServingFederation,
) -> None:
    assert federation.whole.ids is not None
    known = str(federation.whole.ids[3])
    brought = dict.fromkeys(federation.active.features, 0.5)
    code, found = federation.predict("nobody", known, {"_id": "stranger", **brought})
    assert code == 200, found
    assert found["predictions"][0] is None
    assert found["predictions"][2] is None
    assert found["predictions"][1] == pytest.approx(federation.expected([known])[0], abs=1e-6)
    # Whose customer somebody is not is in the operator's log, which names nobody.
    same = "the row of this identifier cannot be scored"
    assert found["errors"] == {"0": same, "2": same}
    told = federation.log("serve").split("rows not scored")[1:]
    assert {party for party in federation.passive if f"party={party} " in "".join(told)}
    assert "party=guest " in "".join(told)
    assert "stranger" not in federation.log("serve")
    assert "nobody" not in federation.log("serve")


def test_features_that_a_caller_brings_stand_for_the_active_party_s_row(
    federation: ServingFederation,
) -> None:
    assert federation.whole.ids is not None
    row, own = federation.whole.X[7], federation.active.features
    features = {n: None if np.isnan(v) else float(v) for n, v in zip(own, row[:3], strict=True)}
    given = {"_id": str(federation.whole.ids[7]), **features}
    assert federation.predict(given)[1] == federation.predict(given["_id"])[1]
    code, found = federation.predict({**given, "height": 3})
    assert (code, found) == (400, {"error": "rows: the model has no feature 'height'"})


def test_contributions_are_xgboost_s_on_the_joined_table(federation: ServingFederation) -> None:
    assert federation.whole.ids is not None
    ids = federation.whole.ids[:20].tolist()
    path = "/v1/models/credit:explain"
    code, found = federation.ask(path, {"instances": ids})
    assert code == 200, found
    values = np.array(found["contributions"])[:, 0]
    matrix = xgb.DMatrix(federation.whole.X[:20])
    shap = federation.booster.predict(matrix, pred_contribs=True, validate_features=False)
    columns = {name: values[:, k] for k, name in enumerate(found["names"])}
    for k, name in enumerate(federation.active.features):
        expected = np.zeros(20) if name not in columns else columns[name]
        np.testing.assert_allclose(expected, shap[:, k], atol=2e-6)
    edge = len(federation.active.features)
    for party in federation.active.parties[1:]:
        part = federation.passive[party]
        for k in range(len(part.features)):
            name = f"{party}:{part.anonymous[k]}"
            expected = np.zeros(20) if name not in columns else columns[name]
            np.testing.assert_allclose(expected, shap[:, edge + k], atol=2e-6)
        edge += len(part.features)
    np.testing.assert_allclose(columns["bias"], shap[:, -1], atol=2e-6)
    margins = federation.booster.predict(matrix, output_margin=True, validate_features=False)
    np.testing.assert_allclose(values.sum(axis=1), margins, atol=2e-6)

    totals = federation.ask(path, {"instances": ids, "by_party": True})[1]
    assert sorted(totals["names"]) == ["bias", "guest", "host-1", "host-2"]
    np.testing.assert_allclose(np.array(totals["contributions"])[:, 0].sum(axis=1), margins,
                               atol=2e-6)  # fmt: skip


def test_a_horizontal_model_is_asked_in_the_same_way(federation: ServingFederation) -> None:
    names = federation.booster.feature_names
    assert names is not None
    rows = [
        {n: None if np.isnan(v) else float(v) for n, v in zip(names, row, strict=True)}
        for row in federation.whole.X[:5]
    ]
    code, found = federation.predict(*rows, model="stock")
    assert code == 200, found
    assert federation.whole.ids is not None
    expected = federation.expected(federation.whole.ids[:5].tolist())
    np.testing.assert_allclose(found["predictions"], expected, atol=1e-6)
    found = federation.ask("/v1/models/stock:explain", {"instances": rows})[1]
    assert found["names"] == [*names, "bias"]
    assert federation.ask("/v1/models/stock")[1]["digest"] == found["digest"]
    code, found = federation.predict({**dict.fromkeys(names), names[0]: 10**30}, model="stock")
    assert (code, found) == (400, {"error": "rows: a feature has a number that is too large"})


@pytest.mark.parametrize(
    ("path", "document", "code", "said"),
    [
        ("/v1/models/credits:predict", {"instances": ["a"]}, 404, "no model 'credits'"),
        ("/v1/models/credit:guess", {"instances": ["a"]}, 404, "none of predict, explain"),
        ("/v1/models/credit:predict", {"instances": []}, 400, "at least one"),
        ("/v1/models/credit:predict", {"rows": ["a"]}, 400, "instances"),
        ("/v1/models/credit:predict", {"instances": ["a"], "x": 1}, 400, "unknown key 'x'"),
        ("/v1/models/credit:predict", {"instances": [["a"]]}, 400, "instances[0]"),
        ("/v1/models/credit:predict", {"instances": ["a" * 300]}, 400, "at most 256"),
        ("/v1/models/credit:predict", {"instances": [{"age": 3}]}, 400, "identifier"),
        ("/v1/models/stock:predict", {"instances": ["a"]}, 400, "features"),
        ("/v1/models/stock:predict", {"instances": [{"guest_0": 1}]}, 400, "6 of 7 features are"),
        (
            "/v1/models/credit:predict",
            {"instances": [{"_id": "a", "guest_0": 1}]},
            400,
            "instances[0]: 2 of 3 features are not there: guest_1, guest_2; null says",
        ),
        ("/v1/models/credit:predict", {"instances": ["a"] * 5000}, 429, "max_rows"),
        ("/v1/models/credit:predict", "no object", 400, "instances"),
        ("/v1/models/credit:predict", {"instances": ["\ud800"]}, 400, "no JSON"),
    ],
)
def test_what_is_malformed_is_refused_with_a_reason(
    federation: ServingFederation, path: str, document: object, code: int, said: str
) -> None:
    found = federation.ask(path, document)
    assert found[0] == code, found
    assert said in found[1]["error"]


def test_what_is_served_and_who_was_refused_is_on_record(federation: ServingFederation) -> None:
    path = federation.folder / "audit.jsonl"
    served = {
        line["hedgerow.model"]: line["file.hash.sha256"]
        for line in lines_of(path)
        if line["event.action"] == "model-serve"
    }
    assert served == {"credit": digest(federation.files[ACTIVE]), "stock": digest(federation.stock)}
    assert federation.ask("/v1/models/credit:predict", {"instances": ["a"] * 5000})[0] == 429
    wait_until(lambda: bool(told(path, "call-refused")), 60, "the refusal is on record")
    (line, *_) = (one for one in lines_of(path) if one["event.action"] == "call-refused")
    assert (line["user.name"], line["source.ip"]) == ("loopback", "127.0.0.1")
    assert line["hedgerow.model"] == "credit"


def test_no_page_of_a_browser_is_answered_on_loopback(federation: ServingFederation) -> None:
    assert federation.whole.ids is not None
    document = {"instances": [str(federation.whole.ids[0])]}
    for asked in (document, None):
        path = "/v1/models/credit" + (":predict" if asked else "")
        assert federation.ask(path, asked)[0] == 200
        code, found = federation.ask(path, asked, origin="http://rebound.example:8480")
        assert (code, found) == (403, {"error": "pages in a browser are not answered on loopback"})


def test_grpc_gives_what_http_gives(federation: ServingFederation) -> None:
    assert federation.whole.ids is not None
    known, stub = str(federation.whole.ids[3]), federation.stub()
    brought = dict.fromkeys(federation.active.features, 0.5)
    features = Struct()
    features.update(brought)
    rows = [
        pb.ScoredRow(id=known),
        pb.ScoredRow(id=known, features=features),
        pb.ScoredRow(id="nobody"),
    ]
    found = stub.Predict(pb.PredictRequest(model="credit", rows=rows), timeout=60)
    same = federation.predict(known, {"_id": known, **brought}, "nobody")[1]
    assert [list(score.values) for score in found.scores] == [
        [pytest.approx(same["predictions"][0], abs=1e-12)],
        [pytest.approx(same["predictions"][1], abs=1e-12)],
        [],
    ]
    assert found.scores[2].error == same["errors"]["2"]
    assert (found.digest, found.fallback) == (same["digest"], False)
    request = pb.ExplainRequest(model="credit", rows=rows[:1], by_party=True)
    explained = stub.Explain(request, timeout=60)
    document = {"instances": [known], "by_party": True}
    same = federation.ask("/v1/models/credit:explain", document)[1]
    assert [*explained.names, "bias"] == same["names"]
    assert list(explained.rows[0].outputs[0].values) == same["contributions"][0][0]
    for request, code in (
        (pb.PredictRequest(model="debit", rows=rows), grpc.StatusCode.NOT_FOUND),
        (pb.PredictRequest(model="credit"), grpc.StatusCode.INVALID_ARGUMENT),
        (
            pb.PredictRequest(model="credit", rows=[pb.ScoredRow()]),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ):
        with pytest.raises(grpc.RpcError) as failed:
            stub.Predict(request, timeout=60)
        assert failed.value.code() is code


def test_requests_of_many_callers_at_once_each_get_their_own_rows(
    federation: ServingFederation,
) -> None:
    assert federation.whole.ids is not None
    ids = [str(i) for i in federation.whole.ids]
    asked = [ids[k : k + 1 + k % 5] for k in range(40)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda some: federation.predict(*some), asked))
    for some, (code, found) in zip(asked, answers, strict=True):
        assert code == 200, found
        np.testing.assert_allclose(found["predictions"], federation.expected(some), atol=1e-6)


def test_a_party_that_is_away_is_named_and_comes_back(federation: ServingFederation) -> None:
    assert federation.whole.ids is not None
    known = str(federation.whole.ids[0])
    federation.kill("agent-host-2")
    code, found = federation.predict(known)
    assert code == 503
    assert "party host-2" in found["error"]
    assert federation.ask("/readyz") == (503, {"ready": False, "away": {"credit": ["host-2"]}})
    assert federation.ask("/healthz")[0] == 200
    wait_until(lambda: federation.predict(known)[1]["error"] == "party host-2 is away", 20, "open")
    federation.start_agent("host-2", answers=federation.answers("host-2", rows_per_day=300))
    wait_until(lambda: federation.ask("/readyz")[0] == 200, 60, "host-2 is back")
    assert federation.predict(known)[0] == 200


def test_a_party_s_own_limit_holds_and_its_ledger_has_every_row(
    federation: ServingFederation,
) -> None:
    """Last of all: from here on host-2 answers no more."""
    assert federation.whole.ids is not None
    ids = federation.whole.ids[:100].tolist()
    codes = [federation.predict(*ids)[0] for _ in range(3)]
    assert codes[-1] == 429
    assert "host-2: rows_per_day" in federation.predict(*ids)[1]["error"]
    federation.stop()
    for name, kind, peer in (
        ("state-agent-host-1", "Directions", "guest"),
        ("state-serve", "Scores", "loopback"),
        ("state-serve", "Identifiers", "host-1"),
    ):
        path = federation.folder / name / "ledger.jsonl"
        verify(path)
        lines = [e for e in read(path) if e.kind == kind and e.peer == peer]
        sent = sum(e.bytes for e in lines)
        assert lines
        assert sent > 0
        assert sum(e.count for e in lines) >= 140
        assert all("guest" not in e.reveals for e in lines)


def test_rows_bring_the_margins_that_they_begin_with_and_categories_by_name(
    tmp_path: Path,
) -> None:
    whole = vertical.with_text(begun(vertical.table(100, 5)), {1: 4, 4: 6})
    made = ServingFederation(tmp_path, whole, widths=[3, 2], base_margin=("m0",), categories="sets")
    assert made.passive["host-1"].sets
    try:
        made.start()
        wait_until(lambda: made.ask("/readyz")[0] == 200, 60, "the party is there")
        rows = vertical.by_id(whole)
        assert rows.ids is not None
        assert rows.base_margin is not None
        ids = rows.ids[:30].tolist()
        booster = made.booster.predict(
            xgb.DMatrix(rows.X, feature_types=rows.schema.feature_types, enable_categorical=True),
            output_margin=True,
            validate_features=False,
        )
        expected = 1 / (1 + np.exp(-(booster + rows.base_margin[:, 0])))
        code, found = made.predict(*ids)
        assert code == 200, found
        np.testing.assert_allclose(found["predictions"], expected[:30], atol=1e-6)
        own = {
            name: f.categories[int(value)] if f.categories else float(value)
            for name, f, value in zip(
                made.active.features, rows.schema.features, rows.X[3], strict=False
            )
        }
        brought = {"_id": ids[3], **own, "m0": float(rows.base_margin[3, 0])}
        code, found = made.predict(brought, {**brought, "m0": None})
        assert code == 200, found
        assert found["predictions"][0] == pytest.approx(expected[3], abs=1e-6)
        assert found["predictions"][1] is None
        assert found["errors"] == {"1": "the row has no base margin"}
        assert "unknown_categories" not in found
        text = next(name for name in made.active.categories)
        code, found = made.predict(ids[0], {**brought, text: "moon"}, {**brought, text: None})
        assert found["unknown_categories"] == {"1": [text]}
        assert found["predictions"][1] == found["predictions"][2]
        features = Struct()
        features.update({**own, "m0": brought["m0"], text: "moon"})
        asked = [pb.ScoredRow(id=ids[0]), pb.ScoredRow(id=ids[3], features=features)]
        same = made.stub().Predict(pb.PredictRequest(model="credit", rows=asked), timeout=60)
        assert [list(score.unknown_categories) for score in same.scores] == [[], [text]]
        code, found = made.ask("/v1/models/credit:explain", {"instances": ids})
        assert code == 200, found
        sums = np.array(found["contributions"])[:, 0].sum(axis=1)
        np.testing.assert_allclose(sums, (booster + rows.base_margin[:, 0])[:30], atol=2e-6)
    finally:
        made.stop()


def test_a_run_is_served_at_once_on_this_machine(tmp_path: Path) -> None:
    job = hedgerow.Job("bagging", rounds=2, max_depth=2, min_silos=2, missing=-999)
    table = people(200, 1)
    table["age"] = np.where(np.arange(200) % 3, table["age"], -999)
    run = hedgerow.simulate(job, table, 2, out=tmp_path / "my run")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    counts = tmp_path / "reference.json"
    counts.write_text(json.dumps(run.reference(table)))
    command = [sys.executable, "-m", "hedgerow", "serve", str(run.folder), "--port", str(port)]
    command += ["--reference", str(counts)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            assert said.startswith('POST {"instances": [{"age": null, "site": null, "dose": null}')
            url = re.search(r"http://\S+(?=:predict)", said)
            assert url is not None
            next(line for line in process.stderr if "serving" in line)
            with urllib.request.urlopen(url[0], timeout=60) as answer:
                found = json.loads(answer.read())
            assert found["inputs"] == [
                {"name": "age", "type": "number"}, {"name": "site", "type": "text"},
                {"name": "dose", "type": "number"},
            ]  # fmt: skip
            assert found["classes"] == ["no", "yes"]
            assert found["drifted"] == []
            row = {"age": 50.0, "site": "hill", "dose": None}
            gap, coded = {**row, "age": None}, {**row, "age": -999}
            new, bare = {**row, "site": "moon"}, {**row, "site": None}
            body = json.dumps({"instances": [row, gap, coded, new, bare]}).encode()
            with urllib.request.urlopen(f"{url[0]}:predict", body, timeout=60) as answer:
                told = json.loads(answer.read())
            scored = told["predictions"]
            assert told["unknown_categories"] == {"3": ["site"]}
            assert scored[3] == scored[4]
            assert any("unknown categories" in line for line in process.stderr)
            expected = run.model.predict_proba({k: [v] for k, v in row.items()})["yes"]
            assert scored[:1] == pytest.approx(expected.tolist(), abs=1e-6)
            assert scored[0] != scored[1] == scored[2]  # as the job says, -999 is a gap
        finally:
            process.terminate()


def test_serve_says_what_it_cannot_serve_and_all_that_is_wrong_with_settings(
    tmp_path: Path,
) -> None:
    def said(*words: object) -> str:
        done = CliRunner().invoke(serve, [str(word) for word in words])
        assert done.exit_code == 2, done.output
        return done.stderr

    assert "expected either RUN or --config" in said()
    report = {"schema": 2, "strategy": "secureboost", "model": "vertical.json", "artefacts": []}
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert "with the other parties' agents" in said(tmp_path)
    settings = tmp_path / "serve.toml"
    settings.write_text('listn = "x"\nstate = "s"\n[models.a]\npath = "p"\ndigest = "d"\n')
    told = said("--config", settings)
    for part in ("unknown key listn; did you mean listen?", "key models.a.digest: ",
                 "key callers is missing"):  # fmt: skip
        assert part in told
    settings.write_text(
        'stat = "s"\n[models.a]\npath = "p"\nfallbak = true\nrows = {pat = "r"}\n'
        "[models.a.drift]\nrefrence = 1\n[callers.x]\nexplai = true\n"
    )
    told = said("--config", settings)
    for part in ("key stat; did you mean state?", "key models.a.fallbak; did you mean fallback?",
                 "key models.a.rows.pat; did you mean path?", "key models.a.digest is missing",
                 "models.a.drift.refrence; did you mean reference?",
                 "key callers.x.explai; did you mean explain?"):  # fmt: skip
        assert part in told
    settings.write_text(
        f'listen = "0.0.0.0:1"\nstate = "s"\ncoordinator = "c:1"\n[models.a]\npath = "p"\n'
        f'digest = "{"0" * 64}"\n[callers.x]\nmodels = ["b"]\n'
    )
    told = said("--config", settings)
    for part in ("0.0.0.0 is no loopback", "there is one, named loopback", "no model 'b'",
                 "coordinator and identity belong together"):  # fmt: skip
        assert part in told
