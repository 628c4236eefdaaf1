"""Settings of the agent: TOML file, then environment (``HEDGEROW_AGENT_...``)."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import SettingsConfigDict

from hedgerow.client_agent.policy import Policy
from hedgerow.services.process.settings import FileSettings


class Source(BaseModel):
    """Where the silo's rows are: a file or fsspec URL, or a SQL query."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(default="", description="Parquet, CSV or LIBSVM file, or an fsspec URL.")
    delimiter: str = Field(
        default="", max_length=1, description="Between columns of a CSV file; recognised if empty."
    )
    decimal: str = Field(
        default="",
        pattern="^[.,]?$",
        description="Decimal sign of a CSV file; recognised if empty.",
    )
    sql_url: str = Field(default="", description="SQLAlchemy URL of a database.")
    query: str = Field(default="", description="Query whose result is the table.")
    table: str = Field(
        default="table",
        min_length=1,
        description="Name under which privacy budgets are accounted, whatever the rows are now.",
    )


class AgentSettings(FileSettings):
    """One silo's agent."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix="HEDGEROW_AGENT_",
        env_nested_delimiter="__",
    )

    coordinator: str = Field(description="HOST:PORT of the coordinator.")
    identity: Path = Field(description="Folder with tls.key, tls.crt and ca.crt.")
    revoked: Path | None = Field(
        default=None,
        description="The CA's list of revoked certificates; ca.crl in identity if not set.",
    )
    server_name: str | None = Field(
        default=None, description="Name in the coordinator's certificate where it is not the host."
    )
    data: Source
    test: Source | None = Field(default=None, description="Evaluation rows of this silo.")
    state: Path = Field(description="Folder of the agent's state: ledger, records, results.")
    policy: Policy = Policy()
    metrics: str = Field(default="127.0.0.1:0", description="HOST:PORT of /metrics; empty: none.")
    crypto: str = Field(default="", description="HOST:PORT of the silo's crypto service.")
    threads: int = Field(default=1, ge=1, description="Threads of local training.")
    dask: str = Field(
        default="",
        pattern="^((tcp|tls)://.+)?$",
        description="Scheduler of the organisation's Dask cluster, on which trees of bagging grow.",
    )
    log_json: bool = Field(default=False, description="Whether logs are JSON.")
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    ready_file: Path | None = Field(
        default=None, description="File that gets the metrics port once the agent runs."
    )
    once: bool = Field(default=False, description="Whether to end after one job.")
