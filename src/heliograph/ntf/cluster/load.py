"""How much work a shard is: pure, measured by its owner and stored with the shard."""

from typing import NamedTuple

__all__ = ["NO_LOAD", "Load", "smoothed"]

SHARD_WEIGHT = 100
"""Of a shard by itself: its connection."""
NOTIFICATION_WEIGHT = 15
"""Of a notification a minute, where a subscription weighs 1: so a subscription with a hundred
notifications a day weighs twice as much as an idle one."""


class Load(NamedTuple):
    """What a shard has to do; `rate` in notifications a minute."""

    subscriptions: int = 0
    rate: int = 0

    @property
    def weight(self) -> int:
        return SHARD_WEIGHT + self.subscriptions + NOTIFICATION_WEIGHT * self.rate


NO_LOAD = Load()


def smoothed(before: Load, subscriptions: int, received: int, seconds: float) -> Load:
    """Return the load after `received` notifications in `seconds`.

    It is a moving average: each earlier measurement counts half as much as the next one.
    """
    return Load(subscriptions, (before.rate + round(received * 60 / seconds)) // 2)
