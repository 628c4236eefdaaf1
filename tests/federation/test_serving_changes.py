"""A server while its settings, models, callers and parties change."""

from __future__ import annotations

import datetime as dt
import hashlib
import ipaddress
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sql
import xgboost as xgb
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hedgerow.api.serving.v1 import scoring_service_pb2 as pb
from tests.federation import vertical
from tests.federation.processes import wait_until
from tests.federation.serving import WIDTHS, ServingFederation, nested


class Callers:
    """The organisation's own CA, and certificates of its applications."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.root = self._sign("ca", self.key, ca=True)
        folder.mkdir()
        (folder / "ca.crt").write_bytes(self.root.public_bytes(serialization.Encoding.PEM))
        for name in ("tls", "web", "stranger"):
            key = ec.generate_private_key(ec.SECP256R1())
            signed = self._sign("127.0.0.1" if name == "tls" else name, key)
            (folder / f"{name}.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
            (folder / f"{name}.key").write_bytes(
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                )
            )

    def _sign(self, name: str, key: Any, *, ca: bool = False) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = subject if ca else self.root.subject
        made = x509.CertificateBuilder(issuer, subject, key.public_key())
        made = made.serial_number(x509.random_serial_number())
        made = made.not_valid_before(now - dt.timedelta(hours=1))
        made = made.not_valid_after(now + dt.timedelta(hours=1))
        made = made.add_extension(x509.BasicConstraints(ca, None), critical=True)
        if not ca:
            here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
            made = made.add_extension(here, critical=False)
            own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
            made = made.add_extension(own, critical=False)
        return made.sign(self.key, hashes.SHA256())

    def credentials(self, name: str) -> grpc.ChannelCredentials:
        root = (self.folder / "ca.crt").read_bytes()
        if not name:
            return grpc.ssl_channel_credentials(root)
        own = [(self.folder / f"{name}.{kind}").read_bytes() for kind in ("key", "crt")]
        return grpc.ssl_channel_credentials(root, *own)

    def ask(self, name: str, port: int, model: str, rows: list[Any]) -> tuple[int, dict[str, Any]]:
        context = ssl.create_default_context(cafile=self.folder / "ca.crt")
        context.check_hostname = False
        if name:
            context.load_cert_chain(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        request = urllib.request.Request(
            f"https://127.0.0.1:{port}/v1/models/{model}:predict",
            json.dumps({"instances": rows}).encode(),
        )
        try:
            with urllib.request.urlopen(request, timeout=60, context=context) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


class Changing(ServingFederation):
    """Both parties' rows in a database, callers with certificates, a model with own trees."""

    def server_settings(self) -> dict[str, Any]:
        found = super().server_settings()
        found["models"]["credit"] |= {"fallback": True, "rows": self.database("guest")}
        found["models"]["strict"] = {**found["models"]["credit"], "fallback": False}
        limits = found["callers"].pop("loopback")
        found["callers"]["web"] = {**limits, "models": ["credit", "strict"], "explain": False}
        return {**found, "tls": str(self.folder / "callers"), "patience_seconds": 0.2}

    def answers(self, party: str, **limits: Any) -> dict[str, Any]:
        return {**super().answers(party, **limits), "rows": self.database(party)}

    def database(self, party: str) -> dict[str, Any]:
        url = f"sqlite:///{self.folder / 'rows.db'}"
        return {"sql_url": url, "query": f'SELECT * FROM "{party}" WHERE _id IN :ids'}

    def write_database(self) -> None:
        engine = sql.create_engine(self.database("guest")["sql_url"])
        with engine.begin() as connection:
            for party, path in self.silos.items():
                table = pq.read_table(path)
                names = [n for n in table.column_names if n != "label"]
                kinds = ", ".join(f'"{n}" {"TEXT" if n == "_id" else "REAL"}' for n in names)
                connection.execute(sql.text(f'CREATE TABLE "{party}" ({kinds})'))
                values = ", ".join(f":{k}" for k in range(len(names)))
                rows = [
                    {str(k): None if row[n] != row[n] else row[n] for k, n in enumerate(names)}
                    for row in table.to_pylist()
                ]
                connection.execute(sql.text(f'INSERT INTO "{party}" VALUES ({values})'), rows)
        engine.dispose()

    def rewrite(self, change: dict[str, Any]) -> None:
        ready = str(self.folder / "serve.ready")
        config = {**self.server_settings(), "ready_file": ready, **change}
        (self.folder / "serve.toml").write_text(nested(config))


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Changing]:
    whole = vertical.table(120, sum(WIDTHS), missing=0.1)
    made = Changing(tmp_path_factory.mktemp("serving"), whole, complete_secure=2)
    try:
        made.write_database()
        Callers(made.folder / "callers")
        yield made.start()
    finally:
        made.stop()


def test_callers_parties_and_models_change_while_scores_are_asked(federation: Changing) -> None:
    callers = Callers.__new__(Callers)
    callers.folder = federation.folder / "callers"
    assert federation.whole.ids is not None
    ids = federation.whole.ids[:20].tolist()
    port = federation.ports["serve"]["port"]

    def ask(name: str = "web", model: str = "credit") -> tuple[int, dict[str, Any]]:
        return callers.ask(name, port, model, ids)

    # Rows of both parties are looked up in a database; the certificate says who calls.
    wait_until(lambda: ask(model="strict")[0] == 200, 60, "all parties are there")
    code, found = ask()
    assert code == 200, found
    np.testing.assert_allclose(found["predictions"], federation.expected(ids), atol=1e-6)
    assert ask("stranger") == (403, {"error": "stranger is not among the callers"})
    assert ask(model="stock")[0] == 404
    with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
        ask("")
    rows = [pb.ScoredRow(id=str(i)) for i in ids]
    request = pb.PredictRequest(model="credit", rows=rows)
    scores = federation.stub(callers.credentials("web")).Predict(request, timeout=60).scores
    assert [score.values[0] for score in scores] == pytest.approx(found["predictions"])
    for name, reason in (
        ("stranger", grpc.StatusCode.PERMISSION_DENIED),
        ("", grpc.StatusCode.UNAVAILABLE),
    ):
        with pytest.raises(grpc.RpcError) as failed:
            federation.stub(callers.credentials(name)).Predict(request, timeout=60)
        assert failed.value.code() is reason

    # Without a party the leading trees of the active party score, where the settings say so.
    federation.kill("agent-host-1")
    wait_until(lambda: ask(model="strict")[0] == 503, 60, "host-1 is away")
    code, found = ask()
    assert code == 200, found
    assert found["fallback"] is True
    matrix = xgb.DMatrix(federation.whole.X[:20])
    own = federation.booster.predict(matrix, iteration_range=(0, 2), validate_features=False)
    np.testing.assert_allclose(found["predictions"], own, atol=1e-6)
    federation.start_agent("host-1", answers=federation.answers("host-1"))
    wait_until(lambda: "fallback" not in ask()[1], 60, "host-1 is back")

    # A file with another digest is not taken up; the model that was there goes on.
    settings = federation.server_settings()
    broken = {**settings["models"]["credit"], "digest": "0" * 64}
    federation.rewrite({"models": {**settings["models"], "credit": broken},
                        "callers": {"web": {"models": ["credit"]}}})  # fmt: skip
    wait_until(lambda: "models not read again" in federation.log("serve"), 60, "it was refused")
    assert ask()[0] == 200
    assert ask(model="strict")[0] == 404  # what a caller no longer has is gone all the same

    # Another model of the same name: this one's parts are everywhere, so it takes the place.
    # The settings are there before the file: they are not forgotten until it is.
    changed = federation.files["guest"].read_bytes() + b"\n"
    again = {**settings["models"]["credit"], "digest": hashlib.sha256(changed).hexdigest()}
    federation.rewrite({"models": {"credit": again, "strict": {**again, "fallback": False}},
                        "callers": {"web": {"models": ["credit"]}}})  # fmt: skip
    wait_until(lambda: f"say {again['digest']}" in federation.log("serve"), 60, "not there yet")
    federation.files["guest"].write_bytes(changed)
    wait_until(lambda: ask()[1].get("digest") == again["digest"], 60, "the new model")
    assert ask(model="strict")[0] == 404  # the caller's rights have changed with it

    # The passive party's settings take a model away.
    other = federation.answers("host-1", models=["ab" * 32])
    config = (federation.folder / "agent-host-1.toml").read_text()
    (federation.folder / "agent-host-1.toml").write_text(
        config[: config.index("[answers]")] + nested({"answers": other})
    )
    wait_until(lambda: ask()[0] == 502, 60, "host-1 refuses")
    assert "host-1 does not answer guest about model" in ask()[1]["error"]

    # It gives the model back, and takes it away again while rows to answer about are missing.
    gone = {"rows": {"path": str(federation.folder / "gone.parquet")}}
    mine = federation.answers("host-1")
    said = "answers not read again"
    for answers, code in ((mine, 200), ({**mine, **gone}, 200), ({**other, **gone}, 502)):
        (federation.folder / "agent-host-1.toml").write_text(
            config[: config.index("[answers]")] + nested({"answers": answers})
        )
        if "path" in answers["rows"]:
            wait_until(lambda: said in federation.log("agent-host-1"), 60, "it is seen")
        wait_until(lambda code=code: ask()[0] == code, 60, f"host-1: {code}")  # type: ignore[misc]
    assert "host-1 does not answer guest about model" in ask()[1]["error"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"listen": "0.0.0.0:0"}, "tls is needed"),
        ({"callers": {"web": {"models": ["credit"]}}}, "loopback"),
        ({"callers": {"loopback": {"models": ["debit"]}}}, "no model 'debit'"),
        ({"coordinator": ""}, "belong together"),
        ({"modles": {}}, "did you mean models"),
    ],
)
def test_settings_that_would_open_too_much_or_nothing_are_refused(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    from click.testing import CliRunner

    from hedgerow.serving import main

    settings = {
        "coordinator": "127.0.0.1:1",
        "identity": str(tmp_path),
        "state": str(tmp_path / "state"),
        "models": {"credit": {"path": "part.json", "digest": "0" * 64}},
        "callers": {"loopback": {"models": ["credit"]}},
        **change,
    }
    (tmp_path / "serve.toml").write_text(nested(settings))
    done = CliRunner().invoke(main, ["--config", str(tmp_path / "serve.toml")])
    assert done.exit_code == 2
    assert said in done.output
