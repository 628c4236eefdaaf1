"""docs/licences.md is what the packages themselves say."""

from __future__ import annotations

import re

from deploy import licences


def test_the_page_lists_each_pinned_package_once_with_a_licence() -> None:
    text = licences.PAGE.read_text()
    rows = re.findall(r"^\| ([a-z0-9-]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text, re.M)
    names = [licences.plain(name) for name in licences.pinned(licences.ROOT / "constraints.txt")]
    assert [name for name, *_ in rows if name != "package"] == sorted(names)
    assert all(told.strip() for row in rows for told in row)


def test_the_page_is_that_of_the_installed_packages() -> None:
    assert licences.PAGE.read_text() == licences.page(), "run make licences"


def test_images_consist_of_the_lists_that_their_builds_install() -> None:
    text = (licences.ROOT / "deploy/Dockerfile").read_text()
    found = re.findall(r"^FROM (\S+) AS (\S+)\n(.*?)(?=^FROM |\Z)", text, re.M | re.S)
    stages = {name: (base, body) for base, name, body in found}

    def lists(stage: str) -> set[str]:
        base, body = stages.get(stage, ("", ""))
        own = set(re.findall(r"--requirement (\S+)\.txt", body))
        copied = re.findall(r"--from=(\S+-packages)", body)
        return own.union(lists(base) if base else (), *map(lists, copied))

    assert {image: lists(image) for image in licences.IMAGES} == {
        image: set(parts) for image, parts in licences.IMAGES.items()
    }
