"""Ingest all waiting segments for a command, and print the account."""

import sys
from typing import TYPE_CHECKING

from heliograph.cli.progress import Bar

if TYPE_CHECKING:
    from heliograph.pipeline.account import Account
    from heliograph.pipeline.runner import Pipeline

UNACCOUNTED = 3
"""The exit code when notifications are unaccounted for."""
GAPS = 4
"""The exit code when all is accounted for, but for events that are known to be missing."""
LAGGING = 6
"""The exit code when it is not known whether events of a router are missing."""
EXIT_CODES = {"complete": 0, "missing": UNACCOUNTED, "gaps": GAPS, "lagging": LAGGING}
"""By verdict."""


def ingest_all(pipeline: "Pipeline") -> int:
    """Ingest the waiting segments, print the account, and return the exit code of its verdict."""
    from heliograph.pipeline.schedule import once, store_account

    bar = Bar("ingesting segments", "MB")
    batches = once(pipeline, bar.show)
    bar.end()
    events = sum(item.events for item in batches)
    twice = sum(item.duplicates for item in batches)
    wrong = sum(item.quarantined for item in batches)
    print(f"{events} events in {sum(item.segments for item in batches)} segments")
    if twice:
        print(f"{twice} were there twice and count once")
    if wrong:
        print(f"{wrong} are in quarantine")
    print("counting outcomes", file=sys.stderr, flush=True)
    account = pipeline.account()
    store_account(pipeline, account)
    for outcome, count in account.outcomes.items():
        print(f"{outcome:<14} {count}")
    return _print_verdict(account)


def _print_verdict(account: "Account") -> int:
    from heliograph.pipeline.account import Verdict
    from heliograph.pipeline.jobs.reach import describe_lag, utc
    from heliograph.pipeline.vocabulary import describe_unfinished

    unfinished = describe_unfinished(account.outcomes)
    until = f", until {utc(account.until)}" if account.until else ""
    for lag in account.lags:
        print(f"lagging: {describe_lag(lag)}")
    if account.verdict is Verdict.COMPLETE:
        print(f"every notification is accounted for{until}{unfinished}")
        return 0
    if account.verdict is Verdict.LAGGING:
        print(
            f"every notification that is known is accounted for{until}{unfinished}; what is"
            " missing of the above is not known: start them, or `heliograph pipeline retire`"
        )
        return LAGGING
    if account.gaps:
        routers = sorted({gap.router for gap in account.gaps})
        print(
            f"{account.missing_events} events are known to be missing, of {', '.join(routers)};"
            f" {account.explained} unaccounted notifications may be among them"
        )
    if account.quarantined:
        print(
            f"{account.quarantined} segments and events are in quarantine:"
            " `heliograph pipeline requeue` reads them again"
        )
    if account.verdict is Verdict.GAPS:
        print("every notification is accounted for, but for events known to be missing")
        return GAPS
    print("notifications are unaccounted for")
    return UNACCOUNTED
