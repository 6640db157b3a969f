"""Writes docs/journal.md from the schema: `python docs/journal.py`."""

import sys
from pathlib import Path

from heliograph.journal.schema import COLUMNS, KINDS, SCHEMA_VERSION, Kind

TARGET = Path(__file__).with_name("journal.md")

INTRODUCTION = f"""\
# The journal

What happens in the routers, event by event, for the data pipeline and for anybody who reads
Parquet. The tables below are written by `docs/journal.py` from `heliograph.journal.schema`: a test
fails when they are out of date. This is version {SCHEMA_VERSION}.

    heliograph journal show DIR       events, a line each
    heliograph journal count DIR      how many of which kind; code 1 if any is wrong or unreadable

## Nobody is in it

No device token, queue ID, key or address is written. `token`, `subscription`, `server`, `push` and
the hashes of a drift are BLAKE2b hashes with a key (`journal.key` in the router's directory) that
never leaves the router: without it they say nothing, and two routers' hashes cannot be compared.
`notification` is a hash without a key of the notification's 24 random bytes, which only the
messaging router, the notification router and the phone know: so its path can be joined over all
three. `journal.id` is random. The host of a messaging router is written only if the operator named
it as an own server.

## Segments

    DIR/<router>/<boot>-<number>.parquet     sealed: whole, never changed
    DIR/<router>/_<boot>-<number>.log        active: only its writer knows it

Set `path` in `[journal]` to a directory, or its `file://` URL; several routers may share one. A
router notes an event in memory and goes on; a thread of its own appends events to the active
segment and syncs it every 0.1 seconds, and seals it as Parquet after `seal_seconds` or 16 MB. While
nothing happens, nothing is written. Names that begin with `_` are not read by Spark.

- **After kill -9** the next run seals what was synced: what is lost is what was noted in the last
  0.1 seconds. Nothing is there twice. So that nothing stays unexplained, a router begins a run by
  journaling what its store still owes (`recovered`), then `router_recovered`: whatever was not
  settled before and is not among it was settled in what is lost.
- **When the journal cannot be written** (full disk, read-only mount, directory missing or in the
  way) the router serves on. It says so once in its log, keeps up to 50,000 events in memory, tries
  again every second, and counts what found no room: `heliograph_*_journal_events_lost_total`, and
  `journal_lost` in the journal once it works again. The missing `seq` are a gap.
- **When it is large**: beyond `max_megabytes` the oldest segments are removed (counted, and said in
  the log), or new events are refused until there is room: `when_full`.

An event is written once, or lost and counted; a push is made at least once. A router killed after a
provider accepted a push and before its store knew makes it again, and that shows: each acceptance
that the store has is one `push_accepted`.

## What settles a notification

A notification router numbers what it stores (`ntf_seq`, which only grows, over all runs). An event
with a `through` settles all notifications of its token up to that number: `push_accepted`,
`push_expired`, `token_invalid`, `token_deleted`; `subscription_deleted` those of its subscription.
In `push_owed` and `router_*` it settles nothing. `push_accepted` lists what it carried; what it
settled and did not carry was superseded by newer ones.

## How it may change

A new kind, or a new column at the end that may be null, keeps the version: readers leave what they
do not know. A name never gets another meaning or type. Anything else is a new version, and readers
know both until the segments of the old one have expired.
"""


def main() -> str:
    parts = [INTRODUCTION, "\n## Columns\n\n| column | type | |\n| --- | --- | --- |\n"]
    for column in COLUMNS.values():
        always = " Always there." if column.required else ""
        parts.append(f"| `{column.name}` | `{column.type.value}` | {column.doc}{always} |\n")
    parts.append("\n## Kinds\n\n| kind | written by | | columns, `?` if not always |\n")
    parts.append("| --- | --- | --- | --- |\n")
    parts += map(_row, KINDS.values())
    return "".join(parts)


def _row(kind: Kind) -> str:
    parts = ", ".join(part.value for part in kind.parts)
    columns = [f"`{name}`" for name in kind.has] + [f"`{name}`?" for name in kind.may_have]
    return f"| `{kind.name}` | {parts} | {kind.doc} | {', '.join(columns)} |\n"


if __name__ == "__main__":
    TARGET.write_text(main())
    sys.stdout.write(f"{TARGET} written\n")
