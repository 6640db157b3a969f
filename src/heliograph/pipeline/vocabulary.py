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
