"""Settings of the crypto process: TOML file, then environment (``HEDGEROW_CRYPTO_...``)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.settings import FileSettings


class CryptoSettings(FileSettings):
    """One silo's crypto process."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix="HEDGEROW_CRYPTO_")

    listen: str = Field(default="127.0.0.1:7444", description="HOST:PORT of the gRPC server.")
    identity: Path = Field(description="Folder with tls.key, tls.crt and ca.crt.")
    silo: str = Field(description="The silo whose agent is served; no other.")
    state: Path = Field(description="Folder of keys that outlive the process, mode 0700.")
    metrics: str = Field(
        default="127.0.0.1:9465", description="HOST:PORT of /metrics; empty: none."
    )
    log_json: bool = Field(default=False, description="Whether logs are JSON.")
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    ready_file: Path | None = Field(
        default=None, description="File that gets the ports once the server listens."
    )
