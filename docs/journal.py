"""Writes docs/journal.md from the schema: `python docs/journal.py`."""

import sys
from pathlib import Path

from heliograph.journal.schema import COLUMNS, KINDS, SCHEMA_VERSION, Kind

TARGET = Path(__file__).with_name("journal.md")

INTRODUCTION = f"""\
# The journal

What happens in the routers, event by event, for the data pipeline and for anyone who reads
Parquet. The tables below are written by `docs/journal.py` from `heliograph.journal.schema`: a test
fails when they are out of date. This is version {SCHEMA_VERSION}.

    heliograph journal show DIR       events, a line each
    heliograph journal count DIR      how many of which kind; code 1 if any is wrong or unreadable
    heliograph journal ship DIR --to s3://bucket/journal --follow 5
                                      copies sealed segments for a pipeline on another machine,
                                      and copies back what that has acknowledged
    heliograph journal collect DIR --listen HOST:PORT --token-file FILE --certificate C --key K
                                      receives what `ship --to https://HOST:PORT` sends

## No identities

No device token, queue ID, key or address is written. `token`, `subscription`, `server`, `push` and
the hashes of a drift are BLAKE2b hashes with a key (`journal.key` in the router's directory) that
never leaves the router: without it they reveal nothing, and two routers' hashes cannot be compared.
`notification` is a hash without a key of the notification's 24 random bytes, which only the
messaging router, the notification router and the phone know: so its path can be joined over all
three. `journal.id` is random. The host of a messaging router is written only if the operator named
it as an own server.

## Segments

    DIR/<router>/<boot>-<number>.parquet     sealed: whole, never changed
    DIR/<router>/_<boot>-<number>.log        active: only its writer knows it
    DIR/<router>/_acknowledged.json          the segments that a pipeline has committed, by boot
    DIR/_heads/<router>-<boot>.json          how far a run has sealed, and when
    DIR/_streaming                           touched while a pipeline streams

Set `path` in `[journal]` to a directory, or its `file://` URL; several routers may share one. A
router records an event in memory and continues; a thread of its own appends events to the active
segment, syncs it every 0.05 seconds, and seals it as Parquet after `seal_seconds` (5) or 16 MB.
While a pipeline streams (`heliograph pipeline run`), segments are sealed after half a second. While
nothing happens, only the head of the run is renewed. Names that begin with `_` are not read by
Spark.

- **The head of a run** has the number of its last segment and sequence number, and the time until
  which that is everything. It is replaced at each seal, renewed every minute while nothing happens,
  and marked as ended at a shutdown or, after a kill, by the next run. So a pipeline can tell an
  idle router from lost segments: see [verdicts](pipeline.md#verdict). It is removed by a later run
  when the pipeline has acknowledged what it counts. Copy `_heads` if you copy segments yourself.
- **Several processes of one router** ([workers](scale.md)) write beside each other, under the
  router's ID and each with a boot of its own. A locked file `_<boot>.live` marks a live run.
- **After kill -9** the next run seals what was synced: what was recorded in the last 0.05 seconds
  or so is lost. Nothing is duplicated. See below what that means for a notification.
- **When the journal cannot be written** (full disk, read-only mount, missing directory) the router
  continues. It logs this once, keeps up to 50,000 events in memory, retries every second, and
  counts the events that found no room: `heliograph_*_journal_events_lost_total`, and
  `journal_lost` in the journal once it works again. The missing `seq` are a gap.
- **When the pipeline has read it**: a pipeline acknowledges each segment after its commit. An
  acknowledged segment is removed after `keep_days` (7), or earlier if there is no room. Segments
  in quarantine are not acknowledged. A second pipeline, or a trial, uses `--no-acknowledge`.
- **When it is large**: beyond `max_megabytes` acknowledged segments are removed first. If there are
  none, the oldest others are (counted in `heliograph_*_journal_events_removed_total`, and said in
  the log), or new events are refused until there is room: `when_full`. Of each run the last segment
  is removed last: its numbers tell the pipeline how many events are missing, and its verdict
  counts them.

## Journals of other machines

A pipeline reads any directory or URL that Spark can read. `journal ship` copies sealed segments
there: to a directory, to storage as `s3://bucket/journal` or `hdfs://host/journal`, or to a
collector (`journal collect`) over HTTPS with a token. Heads follow their segments. A segment is
stored once, however often it is sent, and kill -9 of either side at any moment neither loses nor
repeats one. With `--follow` the shipper waits for a target that is away. What a router removed
before it was shipped is a gap in the pipeline's verdict.

    heliograph journal collect JOURNAL --listen 0.0.0.0:8444 --token-file routers.token \\
        --phone-token-file phones.token --certificate cert.pem --key key.pem
    heliograph journal ship ntf/journal --to https://collector.example.org:8444 \\
        --token-file routers.token --follow 5

The collector checks name, token, schema and size, and that all events are of the router and run in
the name. It refuses another segment under the same name, and more than `--max-megabytes` unless
segments that the pipeline has acknowledged can make room. It takes 64 MB a segment, four at a time.

A phone keeps no journal unless its owner asks for one: `heliograph device watch --journal PLACE`,
and `journal ship PLACE --to URL` with the token of phones, which allows only what phones write
(`agent_decrypted`, `device_shown`). Its hashes are keyed by the phone.

## What a kill takes away

An event is written once, or lost and counted; a push is sent at least once. Some events are on disk
in the journal before they have any effect, and the others are recovered:

- **An answer to a push**, accepted or not, is on disk in the journal before the store
  removes the pending push. So every push that the store has settled is in the journal. A router
  killed in between sends the push again and journals it again: the provider has it twice, and so
  has the journal. If the router is killed before the journal has it, the journal has only the
  second; the phone's journal (`agent_decrypted`, `device_shown`) still shows what both carried.
- **A stored NMSG** is in the store first. Heliograph's messaging router resends every notification
  that was not confirmed (to subscribers that do not confirm, those of the last second before the
  connection broke), so the event that a kill took is journaled when the notification comes again
  (`nmsg_repeated`, or `nmsg_stored`). Messaging routers that do not resend have no journal either;
  of their notifications the next run finds those whose pushes are pending.
- **Pending pushes** in the store are journaled when a run begins (`recovered`), followed by
  `router_recovered`: a notification that was not settled before and is not among them was settled
  in the events that are lost. The messaging router does the same with waiting notifications.
- **Counters** in memory are lost with the process, back to the last time they were saved, and
  counts (`commands_counted`, `client_connected`) back to the last time they were recorded. So a
  router's counters and its journal agree exactly for every run that was stopped; the journal of a
  run that was killed has what the router counted until the last moments before the kill.

## What settles a notification

A notification router numbers what it stores (`ntf_seq`, which only grows, over all runs). An event
with a `through` settles all notifications of its token up to that number: `push_accepted`,
`push_expired`, `token_invalid`, `token_deleted`; `subscription_deleted` those of its subscription.
In `push_pending` and `router_*` it settles nothing. `push_accepted` lists what it carried; what it
settled and did not carry was coalesced.

## How it may change

A new kind, or a new column at the end that may be null, keeps the version: readers ignore what
they do not know. A name never gets another meaning or type. Anything else is a new version, and
readers know both until the segments of the old one have expired.
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
