"""Profiles in the store: functions of a transaction. At most one is active."""

from collections.abc import Iterable

from heliograph.db.dialects import Transaction
from heliograph.device.badge import Badge
from heliograph.device.chats.model import User, UserId
from heliograph.device.store import BADGE, set_setting


def add_user(tx: Transaction, name: str, *, show_notifications: bool = True) -> UserId:
    """Add a profile. The first one is active."""
    [[count]] = tx.query("SELECT COUNT(*) FROM users")
    [[user_id]] = tx.query(
        "INSERT INTO users (name, show_notifications, is_active) VALUES (?, ?, ?)"
        " RETURNING user_id",
        (name, int(show_notifications), int(count == 0)),
    )
    return int(user_id)


def users(tx: Transaction) -> list[User]:
    """Return all profiles, hidden ones too, with the number of their unread items."""
    rows = tx.query(
        "SELECT u.user_id, u.name, u.show_notifications,"
        " (SELECT COUNT(*) FROM items i WHERE i.user_id = u.user_id AND i.is_read = 0),"
        " u.is_active, u.view_password FROM users u ORDER BY u.user_id"
    )
    return [
        User(user_id, name, bool(show) and password is None, unread, bool(active), password)
        for user_id, name, show, unread, active, password in rows
    ]


def get_user(tx: Transaction, user_id: UserId) -> User:
    return next(user for user in users(tx) if user.user_id == user_id)


def active_user(tx: Transaction) -> User | None:
    return next((user for user in users(tx) if user.is_active), None)


def set_active_user(tx: Transaction, user_id: UserId) -> None:
    tx.execute("UPDATE users SET is_active = (user_id = ?)", (user_id,))


def set_show_notifications(tx: Transaction, user_id: UserId, show: bool) -> None:
    tx.execute("UPDATE users SET show_notifications = ? WHERE user_id = ?", (int(show), user_id))


def set_view_password(tx: Transaction, user_id: UserId, password: str | None) -> None:
    """Hide a profile behind the hash of a password, or with None unhide it."""
    tx.execute("UPDATE users SET view_password = ? WHERE user_id = ?", (password, user_id))


def delete_user(tx: Transaction, user_id: UserId) -> None:
    """Delete a profile with its contacts, groups and items. Another one becomes active."""
    tx.execute("DELETE FROM items WHERE user_id = ?", (user_id,))
    tx.execute("DELETE FROM users WHERE user_id = ?", (user_id,))
    left = users(tx)
    if not any(user.is_active for user in left):
        visible = next((user for user in left if not user.is_hidden), None)
        if visible is not None:
            set_active_user(tx, visible.user_id)
    count_unread(tx)


def count_unread(tx: Transaction) -> int:
    """Set the badge to the unread items of all profiles, and return it.

    Muted and hidden profiles count too: reading their items clears the badge.
    """
    badge = Badge().set(total_unread_for_all_users(users(tx)))
    set_setting(tx, BADGE, str(badge.count))
    return badge.count


def total_unread_for_all_users(users: Iterable[User]) -> int:
    """Return the number of unread items of all users, including muted ones."""
    return sum(max(user.unread, 0) for user in users)
