"""The fates of notifications, in the order that reports list them. Needs no Spark."""

SHOWN, ACCEPTED, SUPERSEDED, REJECTED = "shown", "accepted", "superseded", "rejected"
EXPIRED, OWED, UNACCOUNTED = "expired", "owed", "unaccounted"
WAITING, DELIVERED, REMOVED, UNDELIVERABLE = "waiting", "delivered", "removed", "undeliverable"
FATES = (
    SHOWN,
    ACCEPTED,
    SUPERSEDED,
    REJECTED,
    EXPIRED,
    OWED,
    WAITING,
    DELIVERED,
    REMOVED,
    UNDELIVERABLE,
    UNACCOUNTED,
)
