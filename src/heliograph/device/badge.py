"""The number on the app's icon: what is unread, of all users."""

from collections.abc import Iterable
from dataclasses import dataclass

from heliograph.device.chat import User


def total_unread_for_all_users(users: Iterable[User]) -> int:
    """Not only the active user's. Users that are muted count, as reading them clears the badge."""
    return sum(max(user.unread, 0) for user in users)


@dataclass(frozen=True, slots=True)
class Badge:
    """Set by the app to what is unread; raised by the extension, which knows no other number."""

    count: int = 0

    def set(self, count: int) -> "Badge":
        return Badge(max(count, 0))

    def change(self, by: int) -> "Badge":
        return Badge(max(self.count + by, 0))
