"""Makes docs/api/*.md from the protos and their comments, before Sphinx reads its sources."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[2]
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    getattr(_Field, f"TYPE_{name.upper()}"): name
    for name in (
        "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string",
        "bytes", "uint32", "sfixed32", "sfixed64", "sint32", "sint64",
    )
}  # fmt: skip
_PAGES = {
    "federation": (
        "hedgerow.api.federation.v1",
        "Federation",
        "What operators, silos and the coordinator say to each other. Control calls are unary; "
        "an exchange is a stream both ways whose first frame is a `StepKey`.",
    ),
    "serving": (
        "hedgerow.api.serving.v1",
        "Serving",
        "What parties that score together send each other through the coordinator.",
    ),
    "crypto": (
        "hedgerow.api.crypto.v1",
        "Crypto",
        "What a silo's agent asks of its own crypto process, on a network of the silo.",
    ),
}

WELL_KNOWN = Path(protoc.__file__).parent / "_proto"
"""Protos of google.protobuf."""


def descriptors(root: Path) -> descriptor_pb2.FileDescriptorSet:
    """Return the descriptors of all protos, with their comments."""
    files = sorted(str(path.relative_to(root)) for path in root.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "all.pb"
        code = protoc.main(
            [
                "protoc",
                f"-I{root}",
                f"-I{WELL_KNOWN}",
                f"--descriptor_set_out={out}",
                "--include_source_info",
                *files,
            ]
        )
        if code:
            raise RuntimeError(f"protoc ended with code {code}")
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


class _Comments:
    """Comments of one file by path, as source info has them."""

    def __init__(self, file: descriptor_pb2.FileDescriptorProto) -> None:
        self._found = {
            tuple(place.path): place.leading_comments.strip()
            for place in file.source_code_info.location
        }

    def at(self, *path: int) -> str:
        """Return a comment as a paragraph."""
        return " ".join(line.strip() for line in self._found.get(path, "").splitlines())


def page(package: str, title: str, lead: str, files: list[Any]) -> str:
    """Return the Markdown page of a package: services, then messages and enums by file."""
    lines = [f"# {title}: `{package}`", "", lead, ""]
    for file in files:
        comments = _Comments(file)
        for k, service in enumerate(file.service):
            lines += [*_service(service, comments, k)]
    for file in files:
        if file.message_type or file.enum_type:
            lines += [f"## {Path(file.name).name}", ""]
            comments = _Comments(file)
            for k, enum in enumerate(file.enum_type):
                lines += _enum(enum, package, comments, (5, k))
            for k, message in enumerate(file.message_type):
                lines += _message(message, package, comments, (4, k))
    return "\n".join(lines) + "\n"


def _service(service: Any, comments: _Comments, k: int) -> Iterator[str]:
    yield from (f"## {service.name}", "", comments.at(6, k), "")
    yield from ("| method | takes | gives | |", "|---|---|---|---|")
    for j, method in enumerate(service.method):
        takes = _stream(method.client_streaming) + _link(method.input_type)
        gives = _stream(method.server_streaming) + _link(method.output_type)
        yield f"| **{method.name}** | {takes} | {gives} | {_cell(comments.at(6, k, 2, j))} |"
    yield ""


def _stream(streaming: bool) -> str:
    return "stream of " if streaming else ""


def _message(message: Any, scope: str, comments: _Comments, path: tuple[int, ...]) -> list[str]:
    if message.options.map_entry:
        return []
    name = f"{scope}.{message.name}"
    lines = [_target(name), f"### {_short(name)}", "", comments.at(*path), ""]
    if message.field:
        lines += ["| field | number | type | |", "|---|---|---|---|"]
    maps = {f".{name}.{n.name}": n for n in message.nested_type if n.options.map_entry}
    for k, field in enumerate(message.field):
        kind = _kind(field, maps)
        one_of = field.HasField("oneof_index") and not field.proto3_optional
        told = f"one of *{message.oneof_decl[field.oneof_index].name}*. " if one_of else ""
        text = _cell(told + comments.at(*path, 2, k))
        lines.append(f"| `{field.name}` | {field.number} | {kind} | {text} |")
    lines.append("")
    for k, enum in enumerate(message.enum_type):
        lines += _enum(enum, name, comments, (*path, 4, k))
    for k, nested in enumerate(message.nested_type):
        lines += _message(nested, name, comments, (*path, 3, k))
    return lines


def _enum(enum: Any, scope: str, comments: _Comments, path: tuple[int, ...]) -> list[str]:
    name = f"{scope}.{enum.name}"
    lines = [_target(name), f"### {_short(name)}", "", comments.at(*path), ""]
    lines += ["| value | number | |", "|---|---|---|"]
    for k, value in enumerate(enum.value):
        lines.append(f"| `{value.name}` | {value.number} | {_cell(comments.at(*path, 2, k))} |")
    return [*lines, ""]


def _kind(field: Any, maps: dict[str, Any]) -> str:
    if field.type_name in maps:
        key, value = maps[field.type_name].field
        return f"map from {_kind(key, {})} to {_kind(value, {})}"
    kind = _SCALARS.get(field.type) or _link(field.type_name)
    if field.label == _Field.LABEL_REPEATED:
        return f"repeated {kind}"
    return f"optional {kind}" if field.proto3_optional else kind


def _target(name: str) -> str:
    return f"({_anchor(name)})="


def _anchor(name: str) -> str:
    return name.lower().replace(".", "-")


def _short(name: str) -> str:
    return name.split(".v1.", 1)[-1]


def _link(name: str) -> str:
    if name.startswith(".google."):
        return f"`{name.lstrip('.')}`"
    return f"[{_short(name)}](#{_anchor(name.lstrip('.'))})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def generate(folder: Path) -> None:
    """Write the pages that have changed."""
    found = descriptors(ROOT / "proto")
    folder.mkdir(exist_ok=True)
    for name, (package, title, lead) in _PAGES.items():
        files = [file for file in found.file if file.package == package]
        text = page(package, title, lead, files)
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("builder-inited", lambda app: generate(Path(app.srcdir) / "api"))
    return {"parallel_read_safe": True}
