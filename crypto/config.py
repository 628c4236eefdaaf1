"""Settings of the crypto process: TOML file, then environment (``HEDGEROW_CRYPTO_...``)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from hedgerow.crypto.ciphers.key_files import AnySecret, SealingSecret, make_key_file
from hedgerow.crypto.ciphers.tokens import TokenSecret, TokenUri
from hedgerow.crypto.threads import usable_cores
from hedgerow.services.process.settings import (
    Address,
    AddressOrNone,
    FileSettings,
    SettingsInvalid,
)


class CryptoSettings(FileSettings):
    """One silo's crypto process."""

    model_config = SettingsConfigDict(env_prefix="HEDGEROW_CRYPTO_")

    listen: Address = Field(default="127.0.0.1:7444", description="HOST:PORT of the gRPC server.")
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
    key_uri: str | None = Field(
        default=None,
        description="Key in an HSM that seals keys instead, as pkcs11:token=TOKEN;object=KEY?"
        "module-path=LIBRARY&pin-source=FILE.",
    )
    workers: int = Field(
        default_factory=usable_cores, ge=1, description="Cores that kernels share; default: all."
    )
    metrics: AddressOrNone = Field(
        default="127.0.0.1:9465", description="HOST:PORT of /metrics; empty: none."
    )

    @model_validator(mode="after")
    def _one_secret(self) -> CryptoSettings:
        given = {"key_file": self.key_file, "passphrase": self.passphrase, "key_uri": self.key_uri}
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise ValueError(f"expected one of {', '.join(given)}; {' and '.join(named)} are set")
        return self

    @property
    def sealed_beside(self) -> bool:
        """Whether the sealing secret lies beside what it seals, for none is set."""
        return self.key_file is None and self.passphrase is None and self.key_uri is None

    @property
    def default_key_file(self) -> Path:
        """Where the sealing secret is kept when none is set."""
        return self.state / "sealing.key"

    def sealing_secret(self) -> AnySecret:
        """Return what private keys are sealed with; makes the default key file.

        Raises
        ------
        SettingsInvalid
            The key file cannot be read, the secret is too short, or the HSM cannot be used.
        """
        try:
            if self.passphrase is not None:
                return SealingSecret("passphrase", self.passphrase.get_secret_value().encode())
            if self.key_uri is not None:
                secret = TokenSecret(TokenUri.parse(self.key_uri), self.state / "pin.refused")
                secret.key(b"")  # shows now what is wrong
                return secret
            if self.key_file is None:
                make_key_file(self.default_key_file)
            path = self.key_file or self.default_key_file
            return SealingSecret("key file", path.read_bytes())
        except OSError as error:
            raise SettingsInvalid(f"{error.filename}: cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise SettingsInvalid(str(error)) from None
