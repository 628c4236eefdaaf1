"""Process settings from a TOML file, then the environment; what is wrong is said in words."""

from __future__ import annotations

import difflib
import enum
import json
import os
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from hedgerow.boosting.errors import FederationError
from hedgerow.crypto.durable import write_atomically
from hedgerow.services.identity import passphrases
from hedgerow.services.process.texts import parse_address


class SettingsInvalid(FederationError):
    """A configuration that cannot be used; names the key, what was expected and received."""


TRACES: str = Field(
    default="",
    pattern="^(https?://.+)?$",
    description="OpenTelemetry collector that gets a trace of each job, as http://HOST:4317; "
    "empty: none.",
)
"""The setting of a process that takes part in jobs."""
AUDIT: str = Field(
    default="",
    description="Where the audit trail goes: a file, stdout, syslog, or syslog:PATH of another "
    "socket; empty: nowhere. What cannot be written there is refused.",
)
"""The setting of a process that others ask to do something."""
PROXY: str = Field(
    default="",
    description="Proxy on the way to the coordinator, as http://USER:PASSWORD@HOST:PORT or "
    'socks5://USER:PASSWORD@HOST:PORT, or "environment" for HTTPS_PROXY and ALL_PROXY; empty: '
    "none. NO_PROXY is obeyed.",
)
"""The setting of a process that dials a coordinator."""


def _place(text: str) -> str:
    try:
        parse_address(text)
    except FederationError as error:
        raise ValueError(str(error)) from None
    return text


def _places(text: str) -> str:
    for one in text.split(",") if text else ():
        _place(one.strip())
    return text


Address = Annotated[str, AfterValidator(_place)]
"""``HOST:PORT``."""
AddressOrNone = Annotated[str, AfterValidator(lambda text: _place(text) if text else text)]
"""The same, or empty."""
Addresses = Annotated[str, AfterValidator(_places)]
"""Several, divided by commas, or empty."""


class FileSettings(BaseSettings):
    """What the settings of all processes have: the environment overrides the file."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_nested_delimiter="__")

    log_json: bool = Field(default=False, description="Whether logs are JSON.")
    log_level: str = Field(
        default="info",
        pattern="^(debug|info|warning|error)$",
        description="Least level of the log: debug, info, warning or error.",
    )
    ready_file: Path | None = Field(
        default=None, description="File that gets the ports once the process has opened them."
    )

    key_passphrase_file: Path | None = Field(
        default=None,
        description="File of the passphrase of an encrypted tls.key; if not set, the environment's "
        "HEDGEROW_KEY_PASSPHRASE_FILE or HEDGEROW_KEY_PASSPHRASE.",
    )

    def announce(self, **ports: int) -> None:
        """Write the ports that the process has opened to ``ready_file``."""
        if self.ready_file is not None:
            write_atomically(self.ready_file, json.dumps(ports).encode())

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
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsInvalid(f"{path}: not TOML: {error}") from error
    try:
        made = kind(**table)
    except ValidationError as error:
        raise SettingsInvalid(f"{path}: {_explain(error, kind)}") from error
    passphrases.use_file(made.key_passphrase_file)
    return made


def asks_for_json(kind: type[FileSettings], path: Path) -> bool:
    """Whether settings that cannot be used ask for logs in JSON all the same."""
    said = os.environ.get(f"{kind.model_config.get('env_prefix', '')}LOG_JSON", "")
    with suppress(OSError, ValueError):
        said = said or tomllib.loads(path.read_text(encoding="utf-8")).get("log_json", "")
    return str(said).lower() in ("true", "1", "yes", "on")


def _explain(error: ValidationError, kind: type[FileSettings]) -> str:
    return "; ".join(dict.fromkeys(_explained(one, kind) for one in error.errors()))


def _explained(one: Any, kind: type[FileSettings]) -> str:
    where = ".".join(str(part) for part in one["loc"])
    if one["type"] == "extra_forbidden":
        known = _fields(kind, one["loc"][:-1])
        near = difflib.get_close_matches(str(one["loc"][-1]), known, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; known keys: {', '.join(known)}"
        return f"unknown key {where}{hint}"
    if one["type"] == "missing":
        return f"key {where} is missing"
    said = str(one["msg"]).removeprefix("Value error, ")
    return f"key {where}: {said}" if where else said


def _fields(kind: Any, parts: tuple[int | str, ...]) -> list[str]:
    """Return the keys of the table at a place, such as those of any ``[models.NAME]``."""
    for part in parts:
        if not _is_model(kind):  # the part is a name
            kind = typing.get_args(kind)[1]
            continue
        options = _options(kind.model_fields[str(part)].annotation)
        kind = next(a for a in options if _is_model(a) or typing.get_origin(a) is dict)
    return sorted(kind.model_fields)


class SettingRow(NamedTuple):
    """A key of a process' settings."""

    table: str
    """Table of the file that it is in; empty above all tables."""
    key: str
    kind: str
    """Its type in words, with the least and the greatest value."""
    default: str
    """As TOML; ``required`` where there is none, empty where it is not set."""
    about: str
    """What it means."""


_KINDS = {str: "text", bool: "true or false", int: "whole number", float: "number", Path: "path"}


def described(kind: type[BaseModel], table: str = "") -> Iterator[SettingRow]:
    """Yield all keys of a process' settings: its own, those of every process, its tables'."""
    inner: list[tuple[str, type[BaseModel]]] = []
    shared = FileSettings.model_fields
    for key, field in sorted(kind.model_fields.items(), key=lambda item: item[0] in shared):
        model = next((a for a in _options(field.annotation) if _is_model(a)), None)
        if model is not None:
            inner.append((key, model))
            continue
        by_name = [typing.get_args(a)[1] for a in _options(field.annotation)
                   if typing.get_origin(a) is dict]  # fmt: skip
        if by_name and _is_model(by_name[0]):
            inner.append((f"{key}.NAME", by_name[0]))
            continue
        ends = {name: getattr(m, name) for m in field.metadata for name in ("ge", "gt", "le", "lt")
                if hasattr(m, name)}  # fmt: skip
        words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
        limits = ", ".join(f"{words[name]} {value}" for name, value in ends.items())
        shown = ", ".join(part for part in (_named(field.annotation), limits) if part)
        default = "required" if field.is_required() else _literal(field.default)
        yield SettingRow(table, key, shown, default, field.description or "")
    for key, model in inner:
        yield from described(model, f"{table}.{key}".strip("."))


def commented(kind: type[BaseModel], given: Mapping[str, Any]) -> str:
    """Return settings as TOML with every key explained; those not given are commented out.

    Parameters
    ----------
    given : Mapping
        Values by key, of tables as ``table.key``.
    """
    lines: list[str] = []
    entered = ""
    keys = [*described(kind)]
    for each in keys:
        if each.table != entered:
            entered = each.table
            of_table = [k for k in keys if k.table == entered]
            used = any(f"{entered}.{k.key}" in given for k in of_table)
            lines += ["", f"[{entered}]" if used else f"# [{entered}]"]
        name = f"{each.table}.{each.key}".strip(".")
        about = f"{each.about.rstrip('.')}. ({each.kind})".removeprefix(". ")
        lines.append(f"# {about}")
        if name in given:
            lines.append(f"{each.key} = {_literal(given[name])}")
        else:
            lines.append(f"# {each.key} = {each.default}".rstrip())
    return "\n".join(lines) + "\n"


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _options(kind: Any) -> tuple[Any, ...]:
    """Return a type, or those of a union, without None."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return tuple(a for a in typing.get_args(kind) if a is not type(None))
    return (kind,)


def _named(kind: Any) -> str:
    found = []
    for each in _options(kind):
        origin, arguments = typing.get_origin(each), typing.get_args(each)
        if origin is tuple:
            found.append(f"list of {_named(arguments[0])}")
        elif origin is dict:
            found.append(f"table of {_named(arguments[1])}")
        elif isinstance(each, type) and issubclass(each, enum.Enum):
            found.append(" or ".join(json.dumps(option.value) for option in each))
        else:
            found.append(_KINDS.get(each, "text"))
    return " or ".join(found)


def _literal(value: Any) -> str:
    """Return a value as TOML; nothing for what is not set."""
    if value is None or value is PydanticUndefined:
        return ""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(k)} = {_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, enum.Enum | Path):
        value = str(value)
    return json.dumps(value)
