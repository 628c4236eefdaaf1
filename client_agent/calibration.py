"""How fast the silo's machines are: measured once, kept in the state folder, announced."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import structlog

from hedgerow.boosting.calibration import cipher_rates, machine_rates
from hedgerow.boosting.errors import FederationError
from hedgerow.boosting.work import LEAST_RATE, MOST_RATE, Rates, Work
from hedgerow.client_agent.config import AgentSettings
from hedgerow.client_agent.keeper import Pause
from hedgerow.crypto.durable import write_atomically
from hedgerow.crypto.errors import Refusal
from hedgerow.crypto.threads import usable_cores
from hedgerow.crypto.vault.interface import Vault

log = structlog.get_logger()


class Calibration:
    """The rates of a silo; called, it returns those that are known so far."""

    def __init__(self, config: AgentSettings, vaults: Callable[[Pause], Vault]) -> None:
        self._file, self._threads = config.state / "rates.json", config.threads
        self._vaults = vaults
        self._measured_on = {
            "version": version("hedgerow"),
            "cores": usable_cores(),
            "threads": config.threads,
            "crypto": config.crypto,
        }
        self._rates: Rates = {}

    def __call__(self) -> Rates:
        """Return the rates; empty until they are known."""
        return self._rates

    def start(self) -> Calibration:
        """Take the rates of the agent before this one, or measure them in the background."""
        try:
            self._rates = self._kept(json.loads(self._file.read_bytes()))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            threading.Thread(target=self._measure, name="calibration", daemon=True).start()
        return self

    def _kept(self, found: dict[str, Any]) -> Rates:
        if found["measured_on"] != self._measured_on:
            raise ValueError("measured on another machine, or by another version")
        rates = {Work[name]: float(rate) for name, rate in found["rates"].items()}
        if not all(LEAST_RATE <= rate <= MOST_RATE for rate in rates.values()):
            raise ValueError("no rates of a machine")
        return rates

    def _measure(self) -> None:
        try:
            rates = machine_rates(self._threads) | cipher_rates(self._vaults(lambda: None))
            found = {kind.name: rate for kind, rate in rates.items()}
            kept = {"measured_on": self._measured_on, "rates": found}
            write_atomically(self._file, json.dumps(kept, indent=1).encode())
        except (FederationError, Refusal, OSError) as error:  # at the next start
            log.warning("not calibrated: plans tell no seconds of this silo", why=str(error))
            return
        self._rates = rates
