"""Process settings from a TOML file, then the environment; what is wrong is said in words."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from hedgerow.boosting.errors import FederationError


class SettingsInvalid(FederationError):
    """A configuration that cannot be used; names the key, what was expected and received."""


class FileSettings(BaseSettings):
    """Base of the processes' settings: the environment overrides the file."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources in falling precedence."""
        return env_settings, init_settings


Settings = TypeVar("Settings", bound=FileSettings)


def load(kind: type[Settings], path: Path) -> Settings:
    """Return the settings of a file.

    Raises
    ------
    SettingsInvalid
        The file is missing or no TOML, or a key is unknown (the nearest known one is named),
        missing or out of range.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsInvalid(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsInvalid(f"{path}: cannot be read ({error})") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsInvalid(f"{path}: not TOML: {error}") from error
    try:
        return kind(**table)
    except ValidationError as error:
        raise SettingsInvalid(f"{path}: {_explain(error, kind)}") from error


def _explain(error: ValidationError, kind: type[FileSettings]) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _fields(kind, first["loc"][:-1])
        near = difflib.get_close_matches(str(first["loc"][-1]), known, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; known keys: {', '.join(known)}"
        return f"unknown key {where}{hint}"
    if first["type"] == "missing":
        return f"key {where} is missing"
    return f"key {where}: {first['msg']}"


def _fields(kind: Any, parts: tuple[int | str, ...]) -> list[str]:
    for part in parts:
        annotation = kind.model_fields[str(part)].annotation
        nested = [a for a in getattr(annotation, "__args__", ()) if hasattr(a, "model_fields")]
        kind = annotation if hasattr(annotation, "model_fields") else nested[0]
    return sorted(kind.model_fields)
