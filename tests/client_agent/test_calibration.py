"""An agent measures how fast its machines are once, and again on another machine."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from hedgerow.boosting.errors import Unreachable
from hedgerow.boosting.work import Rates, Work
from hedgerow.client_agent.calibration import Calibration
from hedgerow.client_agent.config import AgentSettings, Source
from hedgerow.client_agent.keeper import Pause
from hedgerow.crypto.vault.interface import Vault
from hedgerow.crypto.vault.local_vault import LocalVault


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> AgentSettings:
    folder = tmp_path_factory.mktemp("agent")
    return AgentSettings(
        coordinator="127.0.0.1:1", identity=folder, data=Source(path="x.csv"), state=folder
    )


def vault(pause: Pause) -> Vault:
    return LocalVault()


def away(pause: Pause) -> Vault:
    raise Unreachable("the crypto process does not answer")


def measured(config: AgentSettings) -> Rates:
    found = Calibration(config, vault).start()
    for thread in threading.enumerate():
        if thread.name == "calibration":
            thread.join()
    return found()


def kept(config: AgentSettings) -> Path:
    return config.state / "rates.json"


def test_rates_of_all_work_are_measured_and_kept(config: AgentSettings) -> None:
    first = measured(config)
    assert set(first) == set(Work) - {Work.ROUND_TRIP}
    assert all(rate > 0 for rate in first.values())
    assert Calibration(config, away).start()() == first  # nobody asks the vault again


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"rates": {}}', "other version", '"EXCHANGE": "fast"', '"EXCHANGE": 1e300'],
)
def test_kept_rates_that_do_not_count_are_measured_again(config: AgentSettings, text: str) -> None:
    good = json.loads(kept(config).read_text()) if kept(config).exists() else {}
    if text == "other version":
        text = json.dumps(good | {"measured_on": "another machine"})
    elif text.startswith('"EXCHANGE'):
        text = json.dumps(good | {"rates": json.loads("{" + text + "}")})
    kept(config).write_text(text)
    assert Work.CELL in measured(config)


def test_without_its_vault_an_agent_announces_nothing(
    config: AgentSettings, tmp_path: Path
) -> None:
    found = Calibration(config.model_copy(update={"state": tmp_path}), away).start()
    for thread in threading.enumerate():
        if thread.name == "calibration":
            thread.join()
    assert found() == {}
    assert not (tmp_path / "rates.json").exists()
