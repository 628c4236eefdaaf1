"""Who is admitted to the console, by requests as strangers and sign-ons send them."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from hedgerow.coordinator.operator.library.clients import client_for
from hedgerow.services.identity.certificates import Role
from tests.adversary.people import People
from tests.federation.consoles import JOB, Answer, asked, console, here
from tests.federation.forked import hedgerow
from tests.federation.processes import PATIENCE_SECONDS, Federation, federation
from tests.federation.test_silos_that_left import three_silos


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation(tmp_path_factory.mktemp("console"), 3, 200, lease_seconds=4.0) as made:
        yield made


@pytest.fixture(scope="module")
def address(fed: Federation) -> Iterator[str]:
    """What ``hedgerow console`` prints."""
    with console(fed, "--listen", "127.0.0.1:0") as (printed, process):
        yield printed
    assert process.stderr
    assert process.stderr.read() == ""


def test_strangers_are_refused_before_a_page_is_made(fed: Federation, address: str) -> None:
    job_id = fed.submit(JOB.format(name="done", rounds=2))
    assert fed.end(job_id).state == "SUCCEEDED"
    to = urlsplit(address)
    entered = asked(address, "GET", f"/?{to.query}")
    assert entered.status == 303
    assert re.search(r"; HttpOnly; .*SameSite=strict", entered.headers["set-cookie"])
    cookie = entered.headers["set-cookie"].split(";")[0]
    own = f"http://{to.netloc}"

    # Without the secret, with a wrong one, and under a name that only resolves to loopback.
    for path in ("/", "/jobs", f"/jobs/{job_id}/report", "/static/vega.js", "/?secret=guess"):
        assert asked(address, "GET", path).status == 401
    assert asked(address, "GET", "/", Host="evil.example", Cookie=cookie).status == 421
    assert asked(address, "GET", "/", Host=f"127.0.0.1.evil.example:{to.port}").status == 421

    page = asked(address, "GET", "/submit", Cookie=cookie)
    assert page.status == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cache-control"] == "no-store"
    report = asked(address, "GET", f"/jobs/{job_id}/report", Cookie=cookie)
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts;")
    assert "hedgerow-console-" not in report.body, "a run is named by its job, not by our folder"

    # What changes something needs the console's own origin and its form's token as well.
    token = re.search(r'name="token" value="(\w+)"', page.body)
    assert token
    form = urlencode({"token": token[1], "job": JOB.format(name="x", rounds=1), "do": "submit"})
    long = fed.submit(JOB.format(name="left alone", rounds=5000))
    n_jobs = len([*fed.client.list()])
    for path in ("/submit", f"/jobs/{long}/cancel", f"/jobs/{job_id}/delete"):
        for origin in ({}, {"Origin": "null"}, {"Origin": "https://evil.example"},
                       {"Origin": "http://127.0.0.1:1"}):  # fmt: skip
            assert asked(address, "POST", path, form, Cookie=cookie, **origin).status == 403
        for wrong in ("", "token=", "token=guess", form.replace(token[1], "0" * 64)):
            assert asked(address, "POST", path, wrong, Cookie=cookie, Origin=own).status == 403
        assert asked(address, "POST", path, form, Origin=own).status == 401
        too_long = form + "&more=" + "x" * (3 << 20)
        assert asked(address, "POST", path, too_long, Cookie=cookie, Origin=own).status == 403
    assert asked(address, "GET", f"/jobs/{long}/cancel", Cookie=cookie).status == 405
    refused = asked(address, "POST", f"/jobs/{long}/delete", form, Cookie=cookie, Origin=own)
    assert refused.status == 502
    assert "cancel it first" in refused.body
    assert not fed.client.get(long).ended
    assert len([*fed.client.list()]) == n_jobs
    assert asked(address, "POST", f"/jobs/{long}/cancel", form, Cookie=cookie,
                 Origin=own).status == 303  # fmt: skip
    assert fed.end(long).state == "CANCELLED"
    page = asked(address, "GET", "/jobs?after=none", Cookie=cookie)
    assert page.status == 404
    assert "the page token is of no page of these jobs" in page.body
    unknown = asked(address, "GET", "/jobs/none", Cookie=cookie)
    assert unknown.status == 404
    assert "has no job none" in unknown.body


def test_the_page_of_an_ended_job_is_drawn_again_where_it_has_changed(
    fed: Federation, address: str
) -> None:
    to = urlsplit(address)
    cookie = asked(address, "GET", f"/?{to.query}").headers["set-cookie"].split(";")[0]
    job_id = fed.submit(JOB.format(name="kept", rounds=5000))
    running = asked(address, "GET", f"/jobs/{job_id}/live", Cookie=cookie).body
    fed.client.cancel(job_id)
    assert fed.end(job_id).state == "CANCELLED"
    ended = [asked(address, "GET", f"/jobs/{job_id}/live", Cookie=cookie).body for _ in range(2)]
    assert "cancelled" not in running
    assert all("cancelled" in page for page in ended)
    other = fed.submit(JOB.format(name="second of two", rounds=2))
    assert fed.end(other).state == "SUCCEEDED"
    pages = [asked(address, "GET", f"/compare?job={one}", Cookie=cookie).body
             for one in (job_id, other, job_id, other)]  # fmt: skip
    assert all("second of two" in page for page in pages[1::2])
    assert all("second of two" not in page for page in pages[::2])


def test_without_its_extra_the_console_says_what_to_install(fed: Federation) -> None:
    blocked = (
        "import sys; sys.modules['starlette'] = None; import hedgerow.coordinator.cli as c; c.run()"
    )
    words = ("console", "--coordinator", fed.address, "--identity",
             str(fed.folder / "pki/operator"))  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-c", blocked, *words], capture_output=True, text=True,
        timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "pip install 'hedgerow[console]'" in ended.stderr


def test_behind_a_sign_on_only_its_proxy_is_answered_and_changes_name_who_signed_in(
    fed: Federation, tmp_path: Path
) -> None:
    password, url = "p" * 48, "https://trees.example.org"
    (tmp_path / "password").write_text(password + "\n")
    words = ("--listen", "127.0.0.1:0", "--url", url + "/", "--sign-on",
             str(tmp_path / "password"))  # fmt: skip

    def basic(text: str) -> str:
        return "Basic " + base64.b64encode(text.encode()).decode()

    with console(fed, *words) as (printed, process):
        assert printed == url  # it holds no secret
        at = here(process)
        probe = [sys.executable, "-m", "hedgerow.services.process.probe"]
        subprocess.run([*probe, at.removeprefix("http://"), "--console"], check=True)
        own = {"Host": "trees.example.org"}
        through = own | {"Authorization": basic(f"ann@example.org:{password}")}
        # Who reaches the port past the proxy, or guesses, or only has the name of the header.
        for wrong in ({}, {"Authorization": basic("ann:guess")}, {"Authorization": basic(password)},
                      {"Authorization": f"Bearer {password}"}, {"Authorization": "Basic %"},
                      {"X-Forwarded-User": "ann"}, {"Cookie": f"hedgerow={password}"}):  # fmt: skip
            assert asked(at, "GET", "/", **own, **wrong).status == 401
        assert asked(at, "GET", f"/?secret={password}", **own).status == 401
        assert asked(at, "GET", "/", **through | {"Host": "127.0.0.1"}).status == 421
        page = asked(at, "GET", "/submit", **through)
        assert page.status == 200
        assert "set-cookie" not in page.headers
        assert password not in page.body
        token = re.search(r'name="token" value="(\w+)"', page.body)
        assert token
        text = JOB.format(name="signed on", rounds=5000)
        form = urlencode({"token": token[1], "job": text, "do": "submit"})
        for origin in ("http://trees.example.org", at, "https://evil.example"):
            assert asked(at, "POST", "/submit", form, **through, Origin=origin).status == 403
        made = asked(at, "POST", "/submit", form, **through, Origin=url)
        assert made.status == 303
        job_id = made.headers["location"].rpartition("/")[2]
        ended = asked(at, "POST", f"/jobs/{job_id}/cancel", form, **through, Origin=url)
        assert ended.status == 303
        assert fed.end(job_id).state == "CANCELLED"
    assert process.stderr
    said = [json.loads(line) for line in process.stderr]
    assert [(one["event"], one["user"], one["job"]) for one in said] == [
        ("submitted", "ann@example.org", job_id), ("cancelled", "ann@example.org", job_id),
    ]  # fmt: skip
    assert all(password not in str(one) for one in said)


def test_each_user_of_a_sign_on_acts_by_a_certificate_of_their_own(tmp_path: Path) -> None:
    people, users, audit = People(tmp_path / "pki"), tmp_path / "users", tmp_path / "audit.jsonl"
    with three_silos(tmp_path, people) as own:
        for user, role, name in (
            ("ann@example.org", Role.OPERATOR, "ann"), ("bob", Role.OPERATOR, "bob"),
            ("vera", Role.VIEWER, "vera"), ("north", Role.SILO, "s0"),
        ):  # fmt: skip
            people.make(f"user/{user}", role, name)
        users.symlink_to(tmp_path / "pki/user")
        password, url, host = "p" * 48, "https://trees.example.org", "trees.example.org"
        (tmp_path / "password").write_text(password)
        words = ("--listen", "127.0.0.1:0", "--url", url, "--sign-on", str(tmp_path / "password"),
                 "--users", str(users), "--user-header", "X-Remote-User",
                 "--audit", str(audit))  # fmt: skip
        shown = "Basic " + base64.b64encode(f"proxy:{password}".encode()).decode()
        with console(own, *words) as (_, process):
            at = here(process)

            def get(path: str, user: str = "", *, method: str = "GET", form: str = "") -> Answer:
                headers = {"Host": host, "Authorization": shown, "Origin": url}
                return asked(at, method, path, form, **headers, **{"X-Remote-User": user})

            for user, why in (
                ("", "expected who signed in"), ("eve", "user 'eve' has no operator"),
                ("../pki/admin", "has no operator"), ("north", "is of silo s0"),
            ):  # fmt: skip
                refused = get("/jobs", user)
                assert refused.status == 403
                assert why in refused.body
            past = asked(at, "GET", "/jobs", **{"Host": host, "X-Remote-User": "bob"})
            assert past.status == 401, "the header alone shows nothing"
            assert "operator ann at" in get("/", "ann@example.org").body
            page = get("/submit", "bob")
            token = re.search(r'name="token" value="(\w+)"', page.body)
            assert token
            text = JOB.format(name="of bob", rounds=5000)
            form = urlencode({"token": token[1], "job": text, "do": "submit"})
            crossed = get("/submit", "ann@example.org", method="POST", form=form)
            assert crossed.status == 403, "a form of another user's page"
            made = get("/submit", "bob", method="POST", form=form)
            assert made.status == 303
            job = made.headers["location"]
            assert get(job, "ann@example.org").status == 404
            assert get(job, "vera").status == 200
            seen = re.search(r'name="token" value="(\w+)"', get("/submit", "vera").body)
            assert seen
            cancel = urlencode({"token": seen[1]})
            refused = get(f"{job}/cancel", "vera", method="POST", form=cancel)
            assert refused.status == 502
            assert "of viewer vera" in refused.body
            # A user whose folder goes is out at once.
            (tmp_path / "pki/user/bob").rename(tmp_path / "aside")
            assert get(job, "bob").status == 403
            (tmp_path / "aside").rename(tmp_path / "pki/user/bob")
            gone = get(f"{job}/cancel", "bob", method="POST", form=form)
            assert gone.status == 403, "a form of pages that are no more"
        job_id = job.rpartition("/")[2]
        admin = client_for(own.address, tmp_path / "pki/admin", None)
        assert admin.get(job_id).operator == "bob"
        admin.cancel(job_id)
        with console(own, *words, "--proxy", "192.0.2.1") as (_, process):
            far = asked(here(process), "GET", "/", Host=host, Authorization=shown,
                        **{"X-Remote-User": "bob"})  # fmt: skip
            assert far.status == 403
            assert "127.0.0.1 is none of the sign-on's addresses" in far.body
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    acts = {(one["event.action"], one.get("user.name"), one.get("user.effective.name"))
            for one in lines if one["event.action"] in ("job-submit", "job-cancel")}  # fmt: skip
    assert acts >= {("job-submit", "bob", "bob"), ("job-cancel", "vera", "vera")}
    refused_users = {one.get("user.name") for one in lines if one["event.action"] == "call-refused"}
    assert refused_users >= {"eve", "north"}


def test_a_published_port_is_printed_and_its_secret_admits(fed: Federation) -> None:
    words = ("--listen", "0.0.0.0:0", "--url", "http://127.0.0.1:18080")
    with console(fed, *words) as (printed, process):
        assert printed.startswith("http://127.0.0.1:18080/?secret=")
        at = here(process)
        assert asked(at, "GET", "/").status == 401
        assert asked(at, "GET", "/?" + urlsplit(printed).query).status == 303


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--url", "http://trees.example.org"), "has no TLS"),
        (("--url", "https://trees.example.org/below"), "takes https://HOST"),
        (("--url", "trees.example.org"), "takes https://HOST"),
        (("--sign-on", __file__), "needs --url"),
        (("--sign-on", os.devnull, "--url", "https://trees.example.org"), "expected 32 or more"),
        (("--user-header", "X-Remote-User"), "need --sign-on"),
        (("--proxy", "127.0.0.1"), "need --sign-on"),
        (("--users", "."), "need --sign-on"),
        (("--listen", "0.0.0.0:0"), "is not on loopback"),
        (("--listen", "127.0.0.1.evil.example:0"), "is not on loopback"),
        (("--listen", "8080x"), "takes HOST:PORT"),
    ],
)
def test_the_page_is_offered_to_nobody_else(
    fed: Federation, words: tuple[str, ...], said: str
) -> None:
    identity = fed.folder / "pki/operator"
    ended = hedgerow("console", *words, "--coordinator", fed.address, "--identity", identity)
    assert ended.returncode == 2
    assert said in ended.stderr
