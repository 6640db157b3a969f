"""The outcomes of notifications, in the order that reports list them. Needs no Spark."""

SHOWN, ACCEPTED, COALESCED, REJECTED = "shown", "accepted", "coalesced", "rejected"
EXPIRED, PENDING, UNACCOUNTED = "expired", "pending", "unaccounted"
WAITING, DELIVERED, REMOVED, UNDELIVERABLE = "waiting", "delivered", "removed", "undeliverable"
OUTCOMES = (
    SHOWN,
    ACCEPTED,
    COALESCED,
    REJECTED,
    EXPIRED,
    PENDING,
    WAITING,
    DELIVERED,
    REMOVED,
    UNDELIVERABLE,
    UNACCOUNTED,
)
UNFINISHED = (PENDING, WAITING, DELIVERED)
"""Outcomes that later events may change, of which some may not have arrived."""

OVERDUE = (PENDING, DELIVERED)
"""Outcomes that become `unaccounted` as time passes, without any other event."""
ACCOUNT_AGAIN = 3600.0
"""Seconds after which such outcomes are decided again, if no other event came."""


def describe_unfinished(outcomes: dict[str, int]) -> str:
    """Return how many notifications have no final outcome yet, as the end of a sentence."""
    count = sum(outcomes.get(outcome, 0) for outcome in UNFINISHED)
    return f"; {count:,} of them have no final outcome yet" if count else ""
