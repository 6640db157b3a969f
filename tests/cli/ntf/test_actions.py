"""`heliograph ntf actions`, with a router as a process."""

import json
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from heliograph.actions.contract import SECOND, ActionKind
from heliograph.actions.signing import signing_key
from heliograph.actions.table import append_actions
from heliograph.cli.main import main
from heliograph.cli.ntf.actions import PER_REQUEST, SHOWN
from heliograph.journal.identity import journal_identity
from heliograph.ntf.actions import requests
from heliograph.wire.primitives import b64encode
from tests.actions.support import an_action, key_of
from tests.cli.ntf.test_command import run
from tests.cli.processes import ready, starting, stop

pytestmark = pytest.mark.timeout(240)


def test_actions_are_listed_shown_applied_and_undone(tmp_path: Path) -> None:
    directory, tables = tmp_path / "ntf", tmp_path / "tables"
    assert run("init", "--host", "127.0.0.1", "--dir", directory).returncode == 0
    none = run("actions", "list", "--dir", directory)
    assert none.returncode == 1
    assert "see [actions] table" in none.stderr
    signer = signing_key(tables)
    variables = {
        "HELIOGRAPH_NTF_LISTEN_PORT": "0",
        "HELIOGRAPH_NTF_ACTIONS_TABLE": "../tables",
        "HELIOGRAPH_NTF_ACTIONS_SIGNER": b64encode(signer.public),
        "HELIOGRAPH_NTF_JOURNAL_PATH": "journal",
    }
    with starting("ntf") as start:
        process = start("--dir", directory, **variables)
        ready(process)
        router = journal_identity(directory).router
        now = int(time.time()) * SECOND
        times: dict[str, Any] = {"decided_at": now, "valid_until": now + 3600 * SECOND}
        good = an_action(router=router, signer=signer, **times)
        forged = an_action(router=router, evidence={"n": 2}, signer=key_of("x"), **times)
        foreign = an_action(evidence={"n": 3}, signer=signer, **times)
        append_actions(tables, [good, forged, foreign])

        def actions(*words: str) -> "subprocess.CompletedProcess[str]":
            return run("actions", *words, "--dir", directory, **variables)

        listed = actions("list").stdout
        assert f"{good.action_id}  resubscribe      waiting" in listed
        assert f"{forged.action_id}  resubscribe      refused: forged" in listed
        assert foreign.action_id not in listed
        assert "1 actions are for other routers" in listed
        states = [json.loads(line) for line in actions("list", "--json").stdout.splitlines()]
        assert {item["action"] for item in states} == {good.action_id, forged.action_id}
        shown = actions("show", good.action_id).stdout
        assert "evidence    reason: unsubscribed" in shown
        assert "if applied  unknown_subject" in shown
        dry = actions("apply", "--all", "--dry-run")
        assert dry.stdout == f"{good.action_id}  unknown_subject\nNothing was changed.\n"
        assert "name actions" in actions("apply").stderr
        assert "one of them" in actions("apply", good.action_id, "--all").stderr
        assert "refused: forged" in actions("apply", forged.action_id).stderr
        applied = actions("apply", "--kind", "resubscribe")
        assert (applied.returncode, applied.stdout) == (2, f"{good.action_id}  unknown_subject\n")
        undone = actions("undo", good.action_id)
        assert (undone.returncode, undone.stdout) == (2, f"{good.action_id}  unknown\n")
        assert actions("show", "nonsense").returncode == 1
        evidence = {"finding": "slow_provider", "text": "\x1b[2J\nkind  alert"}
        alert = an_action(
            ActionKind.ALERT, router=router, evidence=evidence, signer=signer, **times
        )
        append_actions(tables, [alert])
        shown = actions("show", alert.action_id).stdout
        assert 'evidence    text: "\\u001b[2J\\nkind  alert"' in shown
        applied = actions("apply", "--kind", "alert")
        assert (applied.returncode, applied.stdout) == (0, f"{alert.action_id}  applied\n")
        assert stop(process)[0] == 0
    _apply_many(directory, SHOWN)
    assert f"{alert.action_id}  alert            applied" in actions("list").stdout
    later = run("actions", "undo", good.action_id, "--dir", directory, **variables)
    assert "will do so when it starts" in later.stdout


def _apply_many(directory: Path, number: int) -> None:
    """Write rows of actions that were applied later than all others."""
    later = int(time.time() * 1000) + 1000
    rows = [(f"{item:032x}", "alert", b"", "applied", later, 1, b"") for item in range(number)]
    with closing(sqlite3.connect(directory / "ntf.db")) as store, store:
        store.executemany(
            "INSERT INTO actions"
            " (action_id, kind, subject, state, applied_at, is_recorded, removed)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            rows,
        )


def test_more_actions_than_a_request_may_have_are_several_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The router executes no request that is longer than `requests.MAX_REQUEST`."""
    assert run("init", "--host", "127.0.0.1", "--dir", tmp_path).returncode == 0
    assert PER_REQUEST * len(json.dumps([an_action().action_id])) < requests.MAX_REQUEST / 2
    monkeypatch.setattr("heliograph.cli.ntf.actions.PER_REQUEST", 2)
    assert main(["ntf", "actions", "undo", "a", "b", "c", "--dir", str(tmp_path)]) == 0
    found = [item.action_ids for item in requests.pending_requests(tmp_path)]
    assert sorted(found) == [("a", "b"), ("c",)]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("AUTOMATIC", "resubscribe", "needs `signer`"),
        ("AUTOMATIC", "explode", "there is no kind explode"),
        ("SIGNER", "x", "heliograph pipeline signer"),
        ("LIMITS", "resubscribe 200% 1/s", "must be as"),
        ("LIMITS", "resubscribe 1% 0/s", "more than 0 in a second"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, name: str, value: str, text: str) -> None:
    assert run("init", "--host", "127.0.0.1", "--dir", tmp_path).returncode == 0
    done = run("check-config", "--dir", tmp_path, **{f"HELIOGRAPH_NTF_ACTIONS_{name}": value})
    assert done.returncode == 1
    assert text in done.stderr
