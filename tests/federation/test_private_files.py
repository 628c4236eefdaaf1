"""What processes keep is for their own user alone, whatever the umask."""

from __future__ import annotations

import stat
from pathlib import Path

from click.testing import CliRunner

from hedgerow.coordinator.cli import main
from tests.federation.processes import Federation, write_table

WIDE = ["sh", "-c", 'umask 000; exec "$@"', "sh"]
JOB = """
strategy = "bagging"
seed = 3
label = "label"
min_silos = 1
silos = ["s0"]
[bagging]
rounds = 1
evaluate = "none"
[booster]
max_depth = 2
"""


def open_to_others(*paths: Path) -> list[str]:
    inside = [one for path in paths for one in (path, *path.rglob("*"))]
    assert len(inside) > len(paths)
    return [str(one) for one in inside if stat.S_IMODE(one.lstat().st_mode) & 0o077]


def test_state_is_for_its_user_alone_and_what_was_open_is_closed(tmp_path: Path) -> None:
    fed = Federation(tmp_path, {"s0": write_table(tmp_path / "s0.parquet", 100, 1)}, fresh=True)
    kept = [tmp_path / "artefacts", tmp_path / "state-agent-s0", tmp_path / "keys-s0"]
    for folder in kept:
        (folder / "old").mkdir(parents=True)
        (folder / "old/file").write_text("from before")
        (folder / "old/file").chmod(0o644)
        folder.chmod(0o755)
    # What a job leaves belongs to nobody else, though the processes were started carelessly.
    spawn = fed._spawn
    fed._spawn = lambda name, module, config, prefix=(): spawn(name, module, config, WIDE)  # type: ignore[method-assign]
    try:
        fed.start_coordinator()
        fed.start_agent("s0", crypto=fed.start_crypto("s0"))
        job_id = fed.submit(JOB)
        assert fed.end(job_id).state == "SUCCEEDED"
        words = ("--coordinator", fed.address, "--identity", str(tmp_path / "pki/operator"))
        run = CliRunner().invoke(main, ["download", job_id, "--out", str(tmp_path / "run"), *words])
        assert run.exit_code == 0, run.output
        assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    finally:
        fed.stop()
    assert open_to_others(*kept) == []
    databases = list(tmp_path.glob("state.db*"))
    assert [one.name for one in databases if one.stat().st_mode & 0o077] == []
    assert databases
    assert "closed to other users" in fed.log("coordinator")
    assert str(tmp_path / "keys-s0") in fed.log("crypto-s0")

    for one in databases:
        one.chmod(0o644)
    fed.start_coordinator()
    fed.stop()
    assert [one.name for one in tmp_path.glob("state.db*") if one.stat().st_mode & 0o077] == []
