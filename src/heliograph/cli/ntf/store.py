"""The commands of `heliograph ntf` that use the store: export, import, backup, trace."""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.cli.actions import add_action, add_backup
from heliograph.cli.arguments import Subparsers
from heliograph.cli.transfer import (
    Progress,
    TransferFormat,
    add_transfer,
    file_errors,
    opened,
)
from heliograph.db.dialects import Dialect, Transaction
from heliograph.ntf.config import NtfConfig
from heliograph.ntf.store.schema import MIGRATIONS
from heliograph.runtime.errors import StartError
from heliograph.wire.errors import WireError
from heliograph.wire.primitives import b64decode

if TYPE_CHECKING:
    from heliograph.ntf.reference.transfer import NtfImport

PART = "ntf"

Load = Callable[[argparse.Namespace], NtfConfig]

_TRACE = """\
Show what happened to one token and which pushes are pending. TOKEN_ID is what its owner's app
shows, in base64url. Works while the router runs. It shows no device token, key or messaging router.
"""


def add(actions: Subparsers, load: Load) -> None:
    add_transfer(
        actions,
        TransferFormat(
            PART,
            "tokens and subscriptions",
            "tokens",
            (
                (
                    "--last-notifications",
                    "the file of last notifications, which the reference keeps separately",
                ),
            ),
            MIGRATIONS,
            lambda options: load(options).store_url(options.dir),
            _import,
            _export,
        ),
    )
    add_backup(actions, PART, lambda options: load(options).store_url(options.dir))
    tracing = add_action(
        actions,
        PART,
        "trace",
        "show what happened to one token, and its pending pushes",
        lambda options: run_trace(options, load(options)),
        _TRACE,
    )
    tracing.add_argument(
        "token_id", metavar="TOKEN_ID", help='after "--": an ID may begin with "-"'
    )
    tracing.add_argument("--json", action="store_true", help="print JSON")
    tracing.add_argument("--journal", action="store_true", help="also read the whole journal")


def _import(dialect: Dialect, progress: Progress) -> "NtfImport":
    from heliograph.ntf.reference.transfer import NtfImport

    return NtfImport(dialect, time.time(), progress)


def _export(dialect: Dialect, progress: Progress, files: list[Path | None]) -> str:
    from heliograph.ntf.reference.transfer import NtfExport

    export = NtfExport(dialect, progress)
    export.write(*files)
    return (
        f"{export.tokens} tokens, {export.subscriptions} subscriptions"
        f" and {export.notifications} last notifications"
    )


def run_trace(options: argparse.Namespace, config: NtfConfig) -> int:
    from heliograph.ntf.diagnosis.trace import describe, hashed_token, read_journal, trace

    try:
        token_id = b64decode(options.token_id)
    except WireError as exc:
        raise StartError("TOKEN_ID: must be base64url, as the app shows it") from exc
    with opened(config.store_url(options.dir)) as dialect:
        found = trace(Transaction(dialect), token_id)
    if found is None:
        raise StartError("there is no such token: it was deleted, or is another router's")
    if options.journal:
        journal = config.journal.path_in(options.dir)
        if journal is None:
            raise StartError("--journal: there is none: see [journal] path")
        with file_errors():
            token = hashed_token(options.dir, token_id, config.journal.key_epoch)
            found = read_journal(found, journal, token)
    if options.json:
        print(json.dumps(asdict(found), indent=2))
    else:
        for line in describe(found, time.time()):
            print(line)
    return 0
