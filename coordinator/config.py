"""Settings of the coordinator: TOML file, then environment (``HEDGEROW_COORDINATOR_...``)."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import SettingsConfigDict

from hedgerow.services.process.settings import AUDIT, TRACES, Address, AddressOrNone, FileSettings
from hedgerow.services.rpc.offer_memory import ALL_BYTES, SILO_BYTES


class Retention(BaseModel):
    """What of ended jobs is kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    days: float = Field(
        default=0.0,
        ge=0.0,
        description="Days after which an ended job is deleted, with its models; 0: never.",
    )


class CoordinatorSettings(FileSettings):
    """One coordinator."""

    model_config = SettingsConfigDict(env_prefix="HEDGEROW_COORDINATOR_")

    listen: Address = Field(default="0.0.0.0:7443", description="HOST:PORT of the gRPC server.")
    identity: Path = Field(description="Folder with tls.key, tls.crt and ca.crt.")
    traces: str = TRACES
    audit: str = AUDIT
    revoked: Path | None = Field(
        default=None,
        description="The CA's list of revoked certificates; ca.crl in identity if not set.",
    )
    silos: tuple[str, ...] = Field(
        default=(), description="Silos that may take part; empty: all with a certificate."
    )
    database: str = Field(
        default="sqlite:///hedgerow.db", description="SQLAlchemy URL: SQLite or PostgreSQL."
    )
    artefacts: str = Field(
        default="artefacts", description="Folder or fsspec URL of checkpoints and models."
    )
    evaluation: dict[str, str] = Field(
        default={}, description="Tables on which jobs may be evaluated, by name."
    )
    models: dict[str, str] = Field(
        default={}, description="Files of models from which jobs may start, by name."
    )
    max_unfinished_jobs: int = Field(
        default=0,
        ge=0,
        description="Most unfinished jobs of one operator, or of one silo whose scripts sign them; "
        "0: any number.",
    )
    scripts: bool = Field(
        default=True, description="Whether silos' scripts may run jobs that no operator signs."
    )
    retention: Retention = Field(default=Retention(), description="What of ended jobs is kept.")
    metrics: AddressOrNone = Field(
        default="127.0.0.1:9464", description="HOST:PORT of /metrics; empty: none."
    )
    lease_seconds: float = Field(
        default=8.0, ge=1.0, description="A silo that is silent for so long is lost."
    )
    max_silo_bytes: int = Field(
        default=SILO_BYTES,
        ge=1 << 20,
        description="Most memory of one silo's offers until they are read.",
    )
    max_waiting_bytes: int = Field(
        default=ALL_BYTES, ge=1 << 20, description="The same of all silos together."
    )
