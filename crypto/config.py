"""Settings of the crypto process: TOML file, then environment (``HEDGEROW_CRYPTO_...``)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from hedgerow.crypto.key_files import SealingSecret, make_key_file
from hedgerow.crypto.threads import usable_cores
from hedgerow.services.process.settings import FileSettings, SettingsInvalid


class CryptoSettings(FileSettings):
    """One silo's crypto process."""

    model_config = SettingsConfigDict(env_prefix="HEDGEROW_CRYPTO_")

    listen: str = Field(default="127.0.0.1:7444", description="HOST:PORT of the gRPC server.")
    identity: Path = Field(description="Folder with tls.key, tls.crt and ca.crt.")
    revoked: Path | None = Field(
        default=None,
        description="The CA's list of revoked certificates; ca.crl in identity if not set.",
    )
    silo: str = Field(description="The silo whose agent is served; no other.")
    state: Path = Field(description="Folder of sealed private keys, mode 0700.")
    key_file: Path | None = Field(
        default=None,
        description="32 secret bytes or more that seal the keys; made in `state` if not set.",
    )
    passphrase: SecretStr | None = Field(
        default=None,
        description="Seals keys instead of a key file; best given by HEDGEROW_CRYPTO_PASSPHRASE.",
    )
    workers: int = Field(
        default_factory=usable_cores, ge=1, description="Cores that kernels share; default: all."
    )
    metrics: str = Field(
        default="127.0.0.1:9465", description="HOST:PORT of /metrics; empty: none."
    )

    @model_validator(mode="after")
    def _one_secret(self) -> CryptoSettings:
        if self.key_file is not None and self.passphrase is not None:
            raise ValueError("expected a key_file or a passphrase, both are set")
        return self

    @property
    def default_key_file(self) -> Path:
        """Where the sealing secret is kept when none is set."""
        return self.state / "sealing.key"

    def sealing_secret(self) -> SealingSecret:
        """Return what private keys are sealed with; makes the default key file.

        Raises
        ------
        SettingsInvalid
            The key file cannot be read, or the secret is too short.
        """
        try:
            if self.passphrase is not None:
                return SealingSecret("passphrase", self.passphrase.get_secret_value().encode())
            if self.key_file is None:
                make_key_file(self.default_key_file)
            path = self.key_file or self.default_key_file
            return SealingSecret("key file", path.read_bytes())
        except OSError as error:
            raise SettingsInvalid(f"{error.filename}: cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise SettingsInvalid(str(error)) from None
