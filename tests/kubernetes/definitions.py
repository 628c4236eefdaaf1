"""Definitions of cert-manager's and the Prometheus operator's kinds, for an API server to check by.

``python -m tests.kubernetes.definitions`` prints them as a JSON list for ``kubectl apply``. They
come from packages that deploy/ci/kube-tools installs, which are generated from the two projects'
own definitions and keep names, types, what is required and enumerations, but no patterns.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

KINDS = (
    ("cloudcoil.models.cert_manager.v1", "cert-manager.io", "Certificate", "certificates"),
    (
        "cloudcoil.models.prometheus_operator.v1",
        "monitoring.coreos.com",
        "PodMonitor",
        "podmonitors",
    ),
    (
        "cloudcoil.models.prometheus_operator.v1",
        "monitoring.coreos.com",
        "PrometheusRule",
        "prometheusrules",
    ),
)
KEPT = ("type", "format", "enum", "pattern", "minimum", "maximum", "required")


def structural(schema: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    """Return a schema as a CustomResourceDefinition has it: without references and null."""
    if "$ref" in schema:
        return structural(named[schema["$ref"].rpartition("/")[2]], named)
    choices = [c for c in schema.get("anyOf", ()) if c.get("type") != "null"]
    if {c.get("type") for c in choices} == {"integer", "string"}:
        return {"x-kubernetes-int-or-string": True}
    if len(choices) == 1:
        return structural(choices[0], named)
    if "type" not in schema:
        return {"x-kubernetes-preserve-unknown-fields": True}
    made = {key: schema[key] for key in KEPT if key in schema}
    if "properties" in schema:
        fields = schema["properties"].items()
        made["properties"] = {name: structural(field, named) for name, field in fields}
    elif isinstance(schema.get("additionalProperties"), dict):
        made["additionalProperties"] = structural(schema["additionalProperties"], named)
    if "items" in schema:
        made["items"] = structural(schema["items"], named)
    return made


def definition(module: str, group: str, kind: str, plural: str) -> dict[str, Any]:
    """Return the CustomResourceDefinition of one kind."""
    model = getattr(importlib.import_module(module), kind)
    schema = model.model_json_schema(by_alias=True)
    made = structural(schema, schema["$defs"])
    made["properties"]["metadata"] = {"type": "object"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": made}}
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": [version]},
    }


if __name__ == "__main__":
    items = [definition(*kind) for kind in KINDS]
    print(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
