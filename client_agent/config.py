"""Settings of the agent: TOML file, then environment (``HEDGEROW_AGENT_...``)."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_settings import SettingsConfigDict

from hedgerow.boosting.errors import DataError
from hedgerow.boosting.tables.delimited import Dialect
from hedgerow.client_agent.memory import PROCESS_BYTES
from hedgerow.client_agent.policy import Policy
from hedgerow.services.process.settings import PROXY, TRACES, Addresses, AddressOrNone, FileSettings


class Source(BaseModel):
    """Where the silo's rows are: a file, folder or fsspec URL, or a SQL query."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(
        default="",
        description="Parquet, CSV or LIBSVM file, or an fsspec URL of one; a folder of Parquet "
        "files, or a Delta table, in an object store as delta+URL; or a URL of a package's source "
        "of tables.",
    )
    delimiter: str = Field(
        default="", max_length=1, description="Between columns of a CSV file; recognised if empty."
    )
    decimal: str = Field(
        default="",
        pattern="^[.,]?$",
        description="Decimal sign of a CSV file; recognised if empty.",
    )
    encoding: str = Field(
        default="",
        description="Encoding of a CSV file, such as shift_jis; UTF-8, UTF-16 or Windows-1252 if "
        "empty.",
    )
    id: str = Field(
        default="_id",
        min_length=1,
        description="Column that names the rows for vertical jobs; it is no feature.",
    )
    sql_url: str = Field(default="", description="SQLAlchemy URL of a database.")
    query: str = Field(default="", description="Query whose result is the table.")
    table: str = Field(
        default="table",
        min_length=1,
        description="Name under which privacy budgets are accounted, also when its rows change.",
    )

    @field_validator("encoding")
    @classmethod
    def _is_encoding(cls, name: str) -> str:
        try:
            return Dialect(encoding=name).encoding
        except DataError as error:
            raise ValueError(str(error).removeprefix("encoding: ")) from None

    @property
    def dialect(self) -> Dialect:
        """How a CSV file is written."""
        return Dialect(self.delimiter, self.decimal, self.id, encoding=self.encoding)


class RowLimits(BaseModel):
    """How much somebody may ask."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_rows: int = Field(default=4096, ge=1, le=65_536, description="Most rows of a request.")
    rows_per_minute: int = Field(default=6_000, ge=1, description="Most rows of a minute.")
    rows_per_day: int = Field(default=100_000, ge=1, description="Most rows of a day (UTC).")


class Asker(RowLimits):
    """A party that this silo's agent answers, for scores with a vertical model."""

    models: tuple[str, ...] = Field(
        min_length=1, description="Digests of the models that it may ask about."
    )


class Answers(BaseModel):
    """``[answers]`` of the agent: whom it answers about its rows, and from where."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    askers: dict[str, Asker] = Field(description="Who may ask, by name of the silo.")
    parts: Path | None = Field(
        default=None, description="Folder with part.json files; the agent's own results if not set."
    )
    rows: Source | None = Field(
        default=None, description="Rows to score; those of data if not set."
    )


class AgentSettings(FileSettings):
    """One silo's agent."""

    model_config = SettingsConfigDict(env_prefix="HEDGEROW_AGENT_")

    coordinator: Addresses = Field(
        min_length=1, description="HOST:PORT of the coordinator; of several, divided by commas."
    )
    identity: Path = Field(description="Folder with tls.key, tls.crt and ca.crt.")
    traces: str = TRACES
    revoked: Path | None = Field(
        default=None,
        description="The CA's list of revoked certificates; ca.crl in identity if not set.",
    )
    server_name: str | None = Field(
        default=None, description="Name in the coordinator's certificate where it is not the host."
    )
    proxy: str = PROXY
    data: Source
    test: Source | None = Field(default=None, description="Evaluation rows of this silo.")
    validation: Source | None = Field(
        default=None,
        description="Validation rows of this silo, for jobs with validation_tables.",
    )
    hold_back: float = Field(
        default=0.0,
        ge=0.0,
        le=0.5,
        description="Share of the rows of data that only score finished models, where there is no "
        "test; the same rows in every horizontal job while the table is the same.",
    )
    answers: Answers | None = Field(
        default=None, description="Questions of other parties that are answered; none if not set."
    )
    state: Path = Field(description="Folder of the agent's state: ledger, records, results.")
    policy: Policy = Policy()
    metrics: AddressOrNone = Field(
        default="127.0.0.1:0", description="HOST:PORT of /metrics; empty: none."
    )
    crypto: AddressOrNone = Field(default="", description="HOST:PORT of the silo's crypto service.")
    threads: int = Field(default=1, ge=1, description="Threads of local training.")
    device: str = Field(
        default="",
        pattern=r"^(cuda(:\d{1,3})?)?$",
        description="GPU on which trees of bagging and fedxgbllr grow in any job, but exact ones, "
        "cuda or cuda:1, with the wheel xgboost in place of xgboost-cpu; that of the job if empty.",
    )
    memory_limit: ByteSize | None = Field(
        default=None,
        description='Most memory of the agent, as "3 GB": bins that have no room in it live in '
        "files in the folder of the state, jobs that need more are declined; none if not set.",
    )
    dask: str = Field(
        default="",
        pattern="^((tcp|tls)://.+)?$",
        description="Scheduler of the organisation's Dask cluster, on which trees of bagging and "
        "fedxgbllr grow, rows of histogram jobs are binned and summed, and a passive party of "
        "secureboost sums ciphertexts.",
    )
    calibrate: bool = Field(
        default=True,
        description="Whether to measure once, for about a second, how fast the silo's machines "
        "are, and to announce it, so that plans tell seconds.",
    )
    once: bool = Field(default=False, description="Whether to end after one job.")

    @field_validator("dask")
    @classmethod
    def _on_cpus(cls, dask: str, info: ValidationInfo) -> str:
        if dask and info.data.get("device"):
            raise ValueError("expected none beside device: trees on a Dask cluster grow on CPUs")
        return dask

    @field_validator("memory_limit")
    @classmethod
    def _above_process(cls, limit: ByteSize | None) -> ByteSize | None:
        if limit is not None and limit <= PROCESS_BYTES:
            raise ValueError(
                f"expected more than the {PROCESS_BYTES // 10**6} MB that the process itself "
                f"takes, received {limit / 1e6:.0f} MB"
            )
        return limit
