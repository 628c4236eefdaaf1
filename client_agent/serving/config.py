"""Settings of ``hedgerow serve``: TOML file, then environment (``HEDGEROW_SERVE_...``)."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_settings import SettingsConfigDict

from hedgerow.client_agent.config import RowLimits, Source
from hedgerow.services.process.settings import (
    AUDIT,
    PROXY,
    Address,
    Addresses,
    AddressOrNone,
    FileSettings,
)
from hedgerow.services.process.texts import parse_address

STALE_PSI = 0.2
"""Usual in banking: below it populations have moved little (Siddiqi, Credit Risk Scorecards)."""
LOOPBACK = "loopback"
"""Name of every caller where no certificates are asked for: on loopback only."""


class Drift(BaseModel):
    """What a served model's rows are compared with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reference: Path = Field(description="Counts of rows of before, by `hedgerow reference`.")
    window_rows: int = Field(
        default=10_000, ge=1_000, le=100_000_000, description="Scored rows of a comparison."
    )
    max_psi: float | None = Field(
        default=None,
        gt=0,
        description="Population stability index of a column above which the model is stale; "
        "policy.stale_psi if not set, which it may not pass.",
    )


class Served(BaseModel):
    """A model that is served."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path = Field(description="model.ubj, or the active party's part.json.")
    digest: str = Field(
        pattern="^[0-9a-f]{64}$", description="SHA-256 of the file; another file is refused."
    )
    rows: Source | None = Field(
        default=None, description="Own rows by _id; callers bring features if not set."
    )
    fallback: bool = Field(
        default=False,
        description="Whether the active party's own leading trees score while a party is away.",
    )
    allow_missing: bool = Field(
        default=False,
        description="Whether instances may leave features out, which are missing values then; null "
        "is one in any case.",
    )
    drift: Drift | None = Field(
        default=None, description="What scored rows are compared with, of a horizontal model."
    )


class ServePolicy(BaseModel):
    """What this silo asks of every model that it serves."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stale_psi: float | None = Field(
        default=None,
        gt=0,
        description="Population stability index of a column above which any compared model is "
        "stale; 0.2 if not set, and a model's own max_psi is free then.",
    )


class Caller(RowLimits):
    """A caller: the name in its certificate, or ``loopback``."""

    models: tuple[str, ...] = Field(min_length=1, description="Models that it may use.")
    explain: bool = Field(default=False, description="Whether it may ask for contributions.")


class ServeSettings(FileSettings):
    """The server of scores in the silo of the active party, or of any silo."""

    model_config = SettingsConfigDict(env_prefix="HEDGEROW_SERVE_")

    listen: Address = Field(default="127.0.0.1:8480", description="HOST:PORT of HTTP.")
    grpc: AddressOrNone = Field(default="", description="HOST:PORT of gRPC; empty: none.")
    tls: Path | None = Field(
        default=None,
        description="Folder with tls.key, tls.crt and ca.crt, the CA of callers. Needed unless "
        "listen is on loopback.",
    )
    models: dict[str, Served] = Field(min_length=1, description="Models by name.")
    callers: dict[str, Caller] = Field(min_length=1, description="Who may call, by name.")
    policy: ServePolicy = Field(
        default=ServePolicy(), description="What this silo asks of every model."
    )
    state: Path = Field(description="Folder of the server's ledger.")
    coordinator: Addresses = Field(default="", description="HOST:PORT, for vertical models.")
    identity: Path | None = Field(
        default=None, description="The silo's tls.key, tls.crt and ca.crt, for vertical models."
    )
    server_name: str | None = Field(
        default=None, description="Name in the coordinator's certificate where it is not the host."
    )
    proxy: str = PROXY
    audit: str = AUDIT
    revoked: Path | None = Field(
        default=None,
        description="The CA's list of revoked certificates; ca.crl in identity if not.",
    )
    ask: RowLimits = Field(
        default=RowLimits(rows_per_minute=10_000_000, rows_per_day=1_000_000_000),
        description="Most rows about which each other party is asked.",
    )
    timeout_seconds: float = Field(
        default=3.0, gt=0, description="Longest wait for other parties' answers."
    )
    patience_seconds: float = Field(
        default=10.0,
        ge=0,
        description="How long requests wait for a party that is gone; later ones fail at once.",
    )
    metrics: AddressOrNone = Field(
        default="127.0.0.1:0", description="HOST:PORT of /metrics; empty: none."
    )

    @model_validator(mode="after")
    def _safe(self) -> ServeSettings:
        wrong: list[str] = []
        for key, address in (("listen", self.listen), ("grpc", self.grpc or "127.0.0.1:0")):
            host, _ = parse_address(address)
            if self.tls is None and not _is_loopback(host):
                wrong.append(f"{key}: {host} is no loopback address, so tls is needed")
        if (self.tls is None) != (set(self.callers) == {LOOPBACK}):
            wrong.append(
                "callers: without tls there is one, named loopback; with tls each has the name in "
                "its certificate"
            )
        for name, caller in self.callers.items():
            if foreign := next((m for m in caller.models if m not in self.models), ""):
                wrong.append(f"callers.{name}.models: there is no model {foreign!r}")
        most = self.policy.stale_psi
        for name, model in self.models.items():
            if most is not None and model.drift is not None and (model.drift.max_psi or 0) > most:
                wrong.append(
                    f"models.{name}.drift.max_psi: expected at most policy.stale_psi ({most}), "
                    f"received {model.drift.max_psi}"
                )
        if bool(self.coordinator) != (self.identity is not None):
            wrong.append("coordinator and identity belong together: one of them is missing")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    def max_psi(self, drift: Drift) -> float:
        """Return the index above which a model that is compared so is stale."""
        return drift.max_psi or self.policy.stale_psi or STALE_PSI


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
