"""The number on the app's icon."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Badge:
    """The badge: set by the app to the number of unread items, incremented by the extension."""

    count: int = 0

    def set(self, count: int) -> "Badge":
        return Badge(max(count, 0))

    def change(self, by: int) -> "Badge":
        return Badge(max(self.count + by, 0))
