"""Four organisations on one real cluster: namespaces, certificates, tables, releases."""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from hedgerow.boosting.errors import Unreachable
from hedgerow.coordinator.operator.library.clients import client_for
from hedgerow.services.identity import authority, certificates
from hedgerow.services.identity.certificates import Role
from hedgerow.services.rpc.jobs import JobClient
from hedgerow.services.wire import job_file
from hedgerow.services.wire.job_view import JobView

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/chart"
FEDERATION = "rollout"
OFFICE = "hedgerow-office"
SILOS = ("harbour", "north", "valley")
NODE_PORT = 30743
ANY_USER = {"runAsUser": 1_000_680_000, "fsGroup": 1_000_680_000}
"""Of a namespace's own range, as OpenShift's policy `restricted` gives them, with root's group."""
RELEASE = "hedgerow"
PORTS = {"database": 5432, "objects": 5000}
ENDPOINT = f"http://objects.{OFFICE}.svc:{PORTS['objects']}"
PATIENT = {"periodSeconds": 2, "timeoutSeconds": 20, "failureThreshold": 30}
SERVERS: dict[str, dict[str, Any]] = {
    "database": {
        "image": "postgres:15-bookworm",
        "securityContext": {"runAsUser": 999},
        "env": [
            {"name": name, "value": value}
            for name, value in (
                ("POSTGRES_USER", "hedgerow"),
                ("POSTGRES_DB", "hedgerow"),
                ("POSTGRES_PASSWORD_FILE", "/etc/login/password"),
            )
        ],
        "readinessProbe": {
            "exec": {"command": ["pg_isready", "-q", "-h", "127.0.0.1", "-U", "hedgerow"]},
            **PATIENT,
        },
    },
    "objects": {
        "image": "hedgerow/s3-server:{tag}",
        # It takes the first part of any other host's name for the bucket.
        "env": [{"name": "MOTO_S3_CUSTOM_ENDPOINTS", "value": ENDPOINT}],
        "readinessProbe": {"tcpSocket": {"port": PORTS["objects"]}, **PATIENT},
    },
}
"""What two coordinators share, as an organisation would have it of others."""


def command(*arguments: str, stdin: bytes | None = None, check: bool = True) -> str:
    """Run a program and return what it prints."""
    done = subprocess.run(arguments, input=stdin, capture_output=True, check=False)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(arguments)}: {done.stderr.decode()}{done.stdout.decode()}")
    return done.stdout.decode()


def kubectl(*arguments: str, stdin: bytes | None = None, check: bool = True) -> str:
    return command("kubectl", *arguments, stdin=stdin, check=check)


def wait_until(reached: Callable[[], bool], seconds: float, what: str) -> float:
    """Return the seconds that it took."""
    began = time.monotonic()
    while not reached():
        assert time.monotonic() - began < seconds, f"{what}: not within {seconds} s"
        time.sleep(0.1)
    return time.monotonic() - began


def namespace(silo: str) -> str:
    return f"hedgerow-{silo}"


class Rollout:
    """The federation's files and releases."""

    def __init__(self, folder: Path, tag: str) -> None:
        self.folder = folder
        self.tag = tag
        self.figures: dict[str, float] = {}
        self.elsewhere: dict[str, Any] = {}
        """Values of a coordinator whose database and artefacts are elsewhere."""
        self.egress: list[dict[str, Any]] = []
        authority.create_authority(folder / "ca", FEDERATION, time.time())

    @property
    def namespaces(self) -> list[str]:
        return [OFFICE, *map(namespace, SILOS)]

    def identity(self, name: str, role: Role, whom: str, hosts: tuple[str, ...] = ()) -> Path:
        """Make a key where it stays and have the CA sign for it; renews what is there."""
        folder = self.folder / "identities" / name
        request = authority.create_request(folder, FEDERATION, role, whom)
        pem = authority.sign_request(
            self.folder / "ca",
            certificates.read(request),
            role,
            whom,
            now=time.time(),
            hosts=hosts,
        )
        certificates.write(folder / "tls.crt", pem)
        certificates.write(folder / "ca.crt", certificates.read(self.folder / "ca/ca.crt"))
        return folder

    def secret(self, space: str, name: str, identity: Path) -> None:
        """Put an identity into a secret, or its renewed form into the same secret."""
        files = {f: (identity / f).read_bytes() for f in ("tls.key", "tls.crt", "ca.crt")}
        apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "namespace": space},
                "data": {f: base64.b64encode(text).decode() for f, text in files.items()},
            }
        )

    def sealing(self, space: str) -> None:
        """Give a crypto process what seals its private keys."""
        key = base64.b64encode(secrets.token_bytes(32)).decode()
        metadata = {"name": "sealing", "namespace": space}
        apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"key": key}})

    def claim(self, space: str, name: str, table: Path) -> None:
        """Make a volume claim and put a table on it, as an organisation's own tools would."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"fill-{name}", "namespace": space},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": False,
                "securityContext": {"runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001},
                "containers": [
                    {
                        "name": "fill",
                        "image": f"hedgerow/crypto:{self.tag}",
                        "imagePullPolicy": "IfNotPresent",
                        "command": ["sleep", "600"],
                        "volumeMounts": [{"name": "tables", "mountPath": "/tables"}],
                    }
                ],
                "volumes": [{"name": "tables", "persistentVolumeClaim": {"claimName": name}}],
            },
        }
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": space},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "100Mi"}},
            },
        }
        apply(claim, pod)
        kubectl("-n", space, "wait", "--for=condition=Ready", f"pod/fill-{name}", "--timeout=120s")
        write = f"cat > /tables/{table.name}"
        kubectl(
            "-n", space, "exec", "-i", f"fill-{name}", "--", "sh", "-c", write,
            stdin=table.read_bytes(),
        )  # fmt: skip
        kubectl("-n", space, "delete", "pod", f"fill-{name}", "--wait=true")

    def share(self) -> None:
        """Give the office PostgreSQL and an S3 server, and let two coordinators keep all there."""
        password, named = secrets.token_hex(16), {"namespace": OFFICE}
        base = {"apiVersion": "v1", "metadata": {**named, "name": "shared"}}
        url = f"postgresql+psycopg://hedgerow:{password}@database.{OFFICE}.svc:{PORTS['database']}"
        keys = {"AWS_ENDPOINT_URL": ENDPOINT, "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "office", "AWS_SECRET_ACCESS_KEY": password}  # fmt: skip
        login = {"password": password, "url": f"{url}/hedgerow"}
        apply(
            {**base, "kind": "Secret", "stringData": login},
            {**base, "kind": "Secret", "metadata": {**named, "name": "objects"},
             "stringData": keys},
        )  # fmt: skip
        for name, container in SERVERS.items():
            container = {"name": name, "imagePullPolicy": "IfNotPresent", **container}
            container["image"] = container["image"].format(tag=self.tag)
            container["volumeMounts"] = [{"name": "login", "mountPath": "/etc/login"}]
            spec = {"containers": [container], "terminationGracePeriodSeconds": 0,
                    "volumes": [{"name": "login", "secret": {"secretName": "shared"}}]}  # fmt: skip
            about = {"metadata": {**named, "name": name, "labels": {"server": name}}}
            ports = [{"port": PORTS[name], "protocol": "TCP"}]
            apply(
                {**base, **about, "kind": "Pod", "spec": spec},
                {**base, **about, "kind": "Service",
                 "spec": {"selector": {"server": name}, "ports": ports}},
            )  # fmt: skip
        kubectl("-n", OFFICE, "wait", "--for=condition=Ready", "--timeout=120s",
                *(f"pod/{name}" for name in SERVERS))  # fmt: skip
        bucket = f"""
from urllib.request import Request, urlopen
urlopen(Request("http://localhost:{PORTS["objects"]}/office", method="PUT"))
"""
        kubectl("-n", OFFICE, "exec", "objects", "--", "python", "-c", bucket)
        self.elsewhere = {
            "replicas": 2,
            "databaseSecret": "shared",
            "artefacts": "s3://office/jobs",
            "environmentSecrets": ["objects"],
        }
        self.egress = [{"ports": [{"port": port, "protocol": "TCP"}]} for port in PORTS.values()]

    def values(self, who: str) -> Path:
        """Return the values file of an organisation."""
        small = {"resources": {"requests": {"cpu": "150m", "memory": "64Mi"}, "limits": {}}}
        values: dict[str, Any] = {
            "federation": FEDERATION,
            "image": {"registry": "", "tag": self.tag},
            "certificates": {"secret": "identity"},
        }
        if who == "office":
            values |= {
                "role": "coordinator",
                "coordinator": {
                    "silos": list(SILOS),
                    "evaluation": {"test": "/var/lib/tables/test.parquet"},
                    "evaluationClaim": "tables",
                    "storage": {"keep": False},
                    "service": {"type": "NodePort", "nodePort": NODE_PORT},
                    **small,
                    **self.elsewhere,
                },
                "networkPolicy": {"extraEgress": self.egress},
                "test": {"operatorSecret": "operator", "job": TEST_JOB},
            }
        else:
            values |= {
                "role": "silo",
                "certificates": {"secret": "identity", "cryptoSecret": "crypto"},
                "silo": {
                    "name": who,
                    "coordinator": f"{RELEASE}.{OFFICE}.svc:7443",
                    "data": {"claim": "tables", "path": f"{who}.parquet"},
                    "policy": {"min_silos": 2, "operators": ["office"]},
                    # One organisation keeps its ledger when it leaves.
                    "storage": {"keep": who == "north"},
                    "agent": small,
                    "crypto": small | {"sealingSecret": "sealing", "storage": {"keep": False}},
                },
            }
        if who == "harbour":
            values["podSecurityContext"] = {**ANY_USER, "runAsGroup": 0}
        path = self.folder / f"{who}.yaml"
        path.write_text(yaml.safe_dump(values))
        return path

    def release(self, verb: str, who: str, *more: str, chart: Path = CHART) -> float:
        """Install or upgrade a release, one of them with the older Helm; seconds to ready."""
        helm = "helm3" if who == SILOS[-1] else "helm"
        began = time.monotonic()
        command(
            helm, verb, RELEASE, str(chart), "--namespace", self.space(who),
            "--values", str(self.values(who)), "--wait", "--timeout", "500s", *more,
        )  # fmt: skip
        return time.monotonic() - began

    def space(self, who: str) -> str:
        return OFFICE if who == "office" else namespace(who)

    @property
    def client(self) -> JobClient:
        """An operator outside the cluster, through the node's port."""
        node = kubectl(
            "get", "nodes", "-o",
            'jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}',
        )  # fmt: skip
        identity = self.folder / "identities/operator"
        return client_for(f"{node}:{NODE_PORT}", identity, "localhost")

    def submit(self, text: str) -> str:
        return self.client.create(job_file.parse(text))

    def wait(
        self, job_id: str, reached: Callable[[JobView], bool], seconds: float, what: str
    ) -> JobView:
        """Wait for a job, across restarts of the coordinator."""
        client = self.client
        view: list[JobView] = []

        def there() -> bool:
            try:
                view[:] = [client.get(job_id)]
            except Unreachable:
                return False
            assert reached(view[0]) or not view[0].ended, f"{view[0].state}: {view[0].detail}"
            return reached(view[0])

        wait_until(there, seconds, f"{what} of job {job_id}")
        return view[0]

    def cancel(self, job_id: str) -> None:
        """Cancel a job; for a moment the node's port may still lead to a pod that is gone."""
        client = self.client

        def cancelled() -> bool:
            try:
                client.cancel(job_id)
            except Unreachable:
                return False
            return True

        wait_until(cancelled, 60, f"cancelling job {job_id}")

    def end(self, job_id: str, seconds: float = 400.0) -> JobView:
        view = self.wait(job_id, lambda view: view.ended, seconds, "the end")
        assert view.state == "SUCCEEDED", view.detail
        return view


def apply(*things: dict[str, Any]) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": list(things)}
    kubectl("apply", "-f", "-", stdin=json.dumps(listed).encode())


def pod_uid(space: str, name: str) -> str:
    return kubectl("-n", space, "get", "pod", name, "-o", "jsonpath={.metadata.uid}", check=False)


def pod_of(space: str, component: str) -> str:
    """Return the name of a component's newest pod."""
    return kubectl(
        "-n", space, "get", "pods", "-l", f"app.kubernetes.io/component={component}",
        "--sort-by=.metadata.creationTimestamp", "-o", "jsonpath={.items[-1:].metadata.name}",
    )  # fmt: skip


def log_of(space: str, pod: str) -> str:
    return kubectl("-n", space, "logs", pod, check=False)


TEST_JOB = """
name = "helm-test"
strategy = "bagging"
label = "label"
task = "binary"
seed = 3
min_silos = 3
[bagging]
rounds = 2
[booster]
max_depth = 3
"""
