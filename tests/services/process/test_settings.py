"""Settings of all processes: what is no address is refused by its key, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedgerow.client_agent.config import AgentSettings
from hedgerow.client_agent.serving.config import ServeSettings
from hedgerow.coordinator.config import CoordinatorSettings
from hedgerow.crypto.config import CryptoSettings
from hedgerow.services.process.settings import FileSettings, SettingsInvalid, load

_AGENT = 'identity = "i"\nstate = "s"\ndata = { path = "t.csv" }\n'
_SERVE = (
    f'state = "s"\nmodels = {{ m = {{ path = "m.ubj", digest = "{"0" * 64}" }} }}\n'
    'callers = { loopback = { models = ["m"] } }\n'
)
_OF: dict[type[FileSettings], tuple[str, dict[str, str]]] = {
    AgentSettings: (_AGENT, {"coordinator": "h:1", "metrics": "", "crypto": ""}),
    CoordinatorSettings: ('identity = "i"\n', {"listen": "0.0.0.0:1", "metrics": ""}),
    CryptoSettings: ('identity = "i"\nsilo = "a"\nstate = "s"\n', {"listen": "[::1]:1",
                                                                   "metrics": ""}),
    ServeSettings: (_SERVE, {"listen": "[::1]:1", "grpc": "", "metrics": "", "coordinator": ""}),
}  # fmt: skip


@pytest.mark.parametrize("kind", _OF, ids=lambda kind: kind.__name__)
def test_an_address_is_host_and_port_or_empty_where_nothing_may_be(
    kind: type[FileSettings], tmp_path: Path
) -> None:
    common, addresses = _OF[kind]
    file = tmp_path / "settings.toml"

    def written(**given: str) -> Path:
        lines = [f'{key} = "{value}"\n' for key, value in {**addresses, **given}.items()]
        file.write_text("".join(lines) + common)
        return file

    loaded = load(kind, written())
    assert {key: getattr(loaded, key) for key in addresses} == addresses
    for key, usual in addresses.items():
        for wrong in ("nonsense", ":", "h:70000", " ", "http://h:1", *([""] if usual else [])):
            with pytest.raises(SettingsInvalid, match=f"{file}: key {key}: "):
                load(kind, written(**{key: wrong}))
