"""``hedgerow init``, ``pki sign`` of its requests, and what ``init accept`` refuses."""

from __future__ import annotations

import json
import socket
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from hedgerow.client_agent.config import AgentSettings
from hedgerow.coordinator.cli import main
from hedgerow.coordinator.config import CoordinatorSettings
from hedgerow.crypto.config import CryptoSettings
from hedgerow.services.process.settings import load

pytestmark = pytest.mark.process


def hedgerow(*words: object, typed: str | None = None) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], input=typed)


def done(*words: object) -> str:
    found = hedgerow(*words)
    assert found.exit_code == 0, found.output
    return found.stdout


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CA, a coordinator's and a silo's folder with their requests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEDGEROW_CONFIG", str(tmp_path / "config.toml"))
    Path("rows.csv").write_text("x,label\n1,0\n")
    done("pki", "init", "--federation", "trial", "--dir", "ca")
    done("init", "coordinator", "--federation", "trial", "--host", "c.example")
    done("init", "silo", "--federation", "trial", "--name", "north", "--data", "rows.csv")
    return tmp_path


def signed(trial: Path) -> dict[str, object]:
    requests = ["coordinator/coordinator.request.json", "north/north.request.json"]
    done("pki", "sign", *requests, "--ca", "ca", "--yes")
    found: dict[str, object] = json.loads((trial / "north/north.bundle.json").read_text())
    return found


def test_every_settings_file_is_one_explains_each_key_and_is_completed(trial: Path) -> None:
    signed(trial)
    done("init", "accept", "coordinator/coordinator.bundle.json")
    done("init", "accept", "north/north.bundle.json")
    agent = load(AgentSettings, trial / "north/agent.toml")
    crypto = load(CryptoSettings, trial / "north/crypto.toml")
    coordinator = load(CoordinatorSettings, trial / "coordinator/coordinator.toml")
    port = coordinator.listen.rpartition(":")[2]
    assert agent.coordinator == f"c.example:{port}"
    assert agent.crypto == crypto.listen
    assert agent.policy.min_silos == 3
    assert agent.data.path == str(trial / "rows.csv")
    text = (trial / "north/agent.toml").read_text()
    assert all(f"{key} =" in text for key in AgentSettings.model_fields["policy"].annotation.model_fields)  # type: ignore[union-attr]  # fmt: skip  # noqa: E501
    services = yaml.safe_load((trial / "north/compose.yaml").read_text())["services"]
    assert services["agent"]["command"] == ["agent", "--config", f"{trial}/north/agent.toml"]
    assert f"run {trial}/north" in (trial / "north/hedgerow-trial-north.service").read_text()


def test_a_port_that_is_taken_is_not_chosen(trial: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        from hedgerow.coordinator.operator.joining import free_port

        assert free_port("0.0.0.0", port) != port


def test_signing_asks_and_shows_whom_it_is_for(trial: Path) -> None:
    words = ("pki", "sign", "coordinator/coordinator.request.json", "--ca", "ca")
    for typed in ("n\n", ""):  # at the end of the input nobody answers
        refused = hedgerow(*words, typed=typed)
        assert refused.exit_code == 1
        assert "coordinator.request.json is not signed: answer y, or give --yes" in refused.stderr
    assert "coordinator coordinator of trial at c.example" in refused.stderr
    assert "all bundles will name the coordinator c.example:" in refused.stderr
    assert not (trial / "coordinator/coordinator.bundle.json").exists()
    assert hedgerow(*words, typed="y\n").exit_code == 0


def test_a_silos_bundle_needs_a_coordinator_that_is_known(trial: Path) -> None:
    words = ("pki", "sign", "north/north.request.json", "--ca", "ca", "--yes")
    assert "has signed no coordinator yet" in hedgerow(*words).stderr
    done(*words, "--coordinator", "other.example:1")
    done("init", "accept", "north/north.bundle.json")
    settings = tomllib.loads((trial / "north/agent.toml").read_text())
    assert settings["coordinator"] == "other.example:1"


def test_a_bundle_that_does_not_fit_changes_nothing(trial: Path) -> None:
    bundle = signed(trial)
    path = trial / "lie.json"
    parts = bundle["signed"]
    assert isinstance(parts, list)
    swapped = [
        {"place": parts[0]["place"], "certificate": parts[1]["certificate"]},
        {"place": parts[1]["place"], "certificate": parts[0]["certificate"]},
    ]
    done("pki", "init", "--federation", "trial", "--dir", "forged")
    forged = (trial / "forged/ca.crt").read_text()
    for lie, why in (
        ({"name": "south"}, "south.request.json cannot be read"),
        ({"federation": "other"}, "the bundle is for north of other"),
        ({"signed": swapped}, "expected a certificate of hedgerow://trial/silo/north"),
        ({"signed": parts[:1]}, "has not the certificates of agent, crypto"),
        ({"signed": [{**parts[0], "place": "../agent"}, parts[1]]}, "has not the certificates"),
        ({"ca": forged}, "signed by a CA that is not the federation's"),
        ({"ca": 3}, "is no Bundle of hedgerow init"),
        ({"extra": 1}, "is no Bundle of hedgerow init"),
    ):
        path.write_text(json.dumps(bundle | lie))
        refused = hedgerow("init", "accept", path, "--dir", "north")
        assert refused.exit_code == 2, refused.output
        assert why in refused.stderr
        assert not list(trial.glob("north/*/*.crt"))
    path.write_text(json.dumps(bundle))
    pinned = ("init", "accept", path, "--ca-sha256", "00")
    assert "00 was expected" in hedgerow(*pinned).stderr
    done("init", "accept", path)
    # Another CA later is refused, and so is a second `init` in the folder.
    path.write_text(json.dumps(bundle | {"ca": str(bundle["ca"]) + forged}))
    assert "is of another CA" in hedgerow("init", "accept", path).stderr
    again = hedgerow("init", "silo", "--federation", "trial", "--name", "north", "--data", "x")
    assert "exists: it is not overwritten" in again.stderr


def test_a_request_that_lies_is_refused(trial: Path) -> None:
    path = trial / "north/north.request.json"
    request = json.loads(path.read_text())
    for lie, why in (
        ({"name": "../up"}, "name '../up'"),
        ({"federation": "other"}, "the request is for federation other, the CA of trial"),
        ({"asked": [{**request["asked"][0], "role": "king"}]}, "'king' is no role"),
        ({"asked": [{**request["asked"][0], "role": "admin"}]}, "not for hedgerow://trial/admin"),
        ({"asked": [{**request["asked"][0], "hosts": ["a\x1b[1A\x1b[2K"]}]}, "no host or address"),
        ({"asked": [{**request["asked"][0], "hosts": ["a\n  silo north"]}]}, "no host or address"),
        ({"address": "evil.example:1\r"}, "no host or address"),
        ({"address": "evil.example:1"}, "the request of a coordinator alone has its address"),
    ):
        path.write_text(json.dumps(request | lie))
        words = ("pki", "sign", path, "--ca", "ca", "--yes", "--coordinator", "c:1")
        refused = hedgerow(*words)
        assert refused.exit_code == 2, (lie, refused.output)
        assert why in refused.stderr
