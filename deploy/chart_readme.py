"""Write the chart's README from its values: ``python -m deploy.chart_readme``."""

from __future__ import annotations

import re
from pathlib import Path

CHART = Path(__file__).resolve().parent / "chart"
HEAD = """# Hedgerow's chart

A release is the coordinator of a federation or one silo. `docs/kubernetes.md` of the sources
explains its use, `examples/` has a file of values for each kind of organisation, and
`values.schema.json` refuses what it does not know. Written from `values.yaml` by
`python -m deploy.chart_readme`.

| value | default | meaning |
|---|---|---|
"""
LINE = re.compile(r"^( *)(\w+):(?: +([^#\s].*?))?(?: +# (.*))?$")


def rows(text: str) -> list[tuple[str, str, str]]:
    """Return each value's path, its default and what its line says of it."""
    found: list[tuple[str, str, str]] = []
    above: list[tuple[int, str, str]] = []
    for line in text.splitlines():
        if not (match := LINE.match(line)):
            continue
        indent, key, default, said = len(match[1]), match[2], match[3], match[4] or ""
        above = [one for one in above if one[0] < indent]
        path = ".".join([*(name for _, name, _ in above), key])
        if default:
            found.append((path, default, said or (above[-1][2] if above else "")))
        else:
            above.append((indent, key, said))
    return found


def readme() -> str:
    """Return the README."""
    lines = (
        f"| `{path}` | `{default}` | {said} |".replace("|  |", "| |")
        for path, default, said in rows((CHART / "values.yaml").read_text())
    )
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    (CHART / "README.md").write_text(readme())
