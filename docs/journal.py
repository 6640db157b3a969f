"""Writes docs/journal.md from the schema: `python docs/journal.py`."""

import sys
from pathlib import Path

from heliograph.journal.schema import COLUMNS, KINDS, SCHEMA_VERSION, Kind

TARGET = Path(__file__).with_name("journal.md")

INTRODUCTION = f"""\
# The journal

The journal records what happens in the routers, event by event. The [pipeline](pipeline.md) reads
it, and so can anything that reads Parquet. `docs/journal.py` writes the tables below from
`heliograph.journal.schema`; a test fails when they are out of date.
This is version {SCHEMA_VERSION}.

    heliograph journal show DIR       # events, a line each
    heliograph journal count DIR      # events by kind; code 1 if any is wrong or unreadable
    heliograph journal ship DIR --to s3://bucket/journal --follow 5
                                      # copies sealed segments for a pipeline on another machine,
                                      # and copies back what that has acknowledged
    heliograph journal collect DIR --listen HOST:PORT --token-file FILE --certificate C --key K
                                      # receives what `ship --to https://HOST:PORT` sends

## No identities

The journal contains no device token, queue ID, key or address.

- `token`, `subscription`, `server`, `push`, hashes of a drift: BLAKE2b hashes with the key
  `journal.key`, which never leaves the router's directory. Without it they reveal nothing, and
  hashes of two routers cannot be compared.
- `notification`: a hash without a key of the notification's 24 random bytes. Only the messaging
  router, the notification router and the phone know them, so its path can be joined over all three.
- `router`: random, from `journal.id`.
- `smp_host`: the host of a messaging router, only if you named it as an own server.

## Segments

    DIR/<router>/<boot>-<number>.parquet     sealed: whole, never changed
    DIR/<router>/_<boot>-<number>.log        active: only its writer knows it
    DIR/<router>/_acknowledged.json          the segments that a pipeline has committed, by boot
    DIR/_heads/<router>-<boot>.json          how far a run has sealed, and when
    DIR/_streaming                           touched while a pipeline streams

Set `[journal] path` to a directory, or its `file://` URL; several routers may share one. A router
records an event in memory and continues. A thread appends events to the active segment, syncs it
every 0.05 seconds, and seals it as Parquet after `seal_seconds` (5) or 16 MB. While a pipeline
streams (`heliograph pipeline run`), segments are sealed after a quarter of a second. While nothing
happens, only the head of the run is renewed. Spark does not read names that begin with `_`.

- **The head of a run** has the numbers of its last segment and event, and the time until which
  these are the last. It is replaced at each seal, renewed every minute while nothing happens (every
  ten seconds by one process of several), and marked as ended at a shutdown or, after a kill, by the
  next run. So a pipeline can tell an idle router from lost segments: see
  [verdicts](pipeline.md#verdict). A later run removes it once the pipeline has acknowledged its
  segments, unless it counts events that could not be written at the shutdown. If you copy segments
  yourself, copy `_heads` too.
- **Several processes of one router** ([workers](scale.md)) write in parallel, under the router's ID
  and each with its own boot. A locked file `_<boot>.live` marks a live run. `max_megabytes` limits
  them together: each looks once a minute at what the others have sealed.
- **After kill -9** the next run seals what was synced. Events of the last 0.05 seconds or so are
  lost. Nothing is duplicated. See below what that means for a notification.
- **When the journal cannot be written** (full disk, read-only mount, missing directory) the router
  continues. It logs this once, keeps up to 50,000 events in memory and retries every second. It
  counts events that found no room in `heliograph_*_journal_events_lost_total`, and as
  `journal_lost` in the journal once it works again. The missing `seq` are a gap.
- **When the pipeline has read a segment**, it acknowledges it after its commit. The router removes
  an acknowledged segment after `keep_days` (7), or earlier if there is no room. Segments in
  quarantine, and those of events there, are not acknowledged. For a second pipeline, or a trial,
  use `--no-acknowledge`.
- **When it is larger than `max_megabytes`**, acknowledged segments are removed first. If there are
  none, `when_full` decides: the oldest others are removed (logged, and counted in
  `heliograph_*_journal_events_removed_total`), or new events are refused until there is room. The
  last segment of each run is removed last: from its numbers the pipeline knows how many events are
  missing.

## Journals of other machines

A pipeline reads any directory or URL that Spark can read. `journal ship` copies sealed segments and
heads there: to a directory, to storage such as `s3://bucket/journal` or `hdfs://host/journal`, or
to a collector (`journal collect`) over HTTPS with a token. A segment is stored once, however often
it is sent; kill -9 of either side neither loses nor repeats one. With `--follow` the shipper waits
for a target that is down. Segments that a router removed before they were shipped are a gap in the
pipeline's verdict.

    heliograph journal collect JOURNAL --listen 0.0.0.0:8444 --token-file routers.token \\
        --phone-token-file phones.token --certificate cert.pem --key key.pem
    heliograph journal ship ntf/journal --to https://collector.example.org:8444 \\
        --token-file routers.token --follow 5

The collector checks name, token, schema and size, and that all events are of the router and run in
the name. It refuses a different segment under the same name. Beyond `--max-megabytes` it removes
acknowledged segments, and refuses new ones if there are none. It accepts segments of up to 64 MB
(1 GB without compression, texts of up to 4 KB), four of routers and four of phones at a time. A
connection that shows no token within 15 seconds is closed; of more than 256 such, the oldest.

A phone keeps no journal unless its owner asks for one: `heliograph device watch --journal PLACE`,
then `journal ship PLACE --to URL` with the token of phones. That token allows only the events that
phones write (`agent_decrypted`, `device_shown`). The phone has its own key for hashes.

## What a kill takes away

An event is written once, or lost and counted. A push is sent at least once. Some events are on disk
before they have any effect, and the others are recovered:

- **An answer to a push**, accepted or not, is on disk in the journal before the store removes the
  pending push. So every settled push is in the journal. A router killed in between sends the push
  again and journals it again: provider and journal have it twice. If it is killed before the first
  is in the journal, the journal has only the second; the phone's journal (`agent_decrypted`,
  `device_shown`) still shows what both carried.
- **A stored NMSG** is in the store first. Heliograph's messaging router resends unconfirmed
  notifications (to subscribers that do not confirm, those of the last second before the connection
  broke). So an event that a kill took is journaled when the notification comes again
  (`nmsg_repeated`, or `nmsg_stored`). Of messaging routers that do not resend, the next run finds
  the notifications whose pushes are pending.
- **Pending pushes** in the store are journaled when a run begins (`recovered`), followed by
  `router_recovered`: a notification that was not settled before and is not among them was settled
  in the events that are lost. The messaging router does the same with waiting notifications.
- **Counters** in memory are lost back to the last time they were saved, and counts
  (`commands_counted`, `client_connected`) back to the last time they were recorded. So a router's
  counters and its journal agree exactly for every run that was shut down; after a kill the last
  moments are missing.

## What settles a notification

A notification router numbers what it stores (`ntf_seq`, which only grows, over all runs). An event
with a `through` settles all notifications of its token up to that number: `push_accepted`,
`push_expired`, `token_invalid`, `token_deleted`; `subscription_deleted` those of its subscription.
In `push_pending` and `router_*` it settles nothing. `push_accepted` lists the notifications it
carried; those it settled and did not carry were coalesced.

## How it may change

A new kind, or a new column at the end that may be null, keeps the version: readers ignore what
they do not know. A name never gets another meaning or type. Any other change is a new version, and
readers know both until the old segments have expired.
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
