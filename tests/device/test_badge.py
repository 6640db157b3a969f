from hypothesis import given, strategies as st

from heliograph.device.badge import Badge
from heliograph.device.chats.model import User
from heliograph.device.chats.users import total_unread_for_all_users


def test_the_unread_of_all_users_count() -> None:
    users = [User(1, "a", unread=2), User(2, "b", show_notifications=False, unread=3), User(3, "c")]
    assert total_unread_for_all_users(users) == 5
    assert total_unread_for_all_users([]) == 0


@given(st.lists(st.integers(-5, 5)))
def test_it_is_never_negative(changes: list[int]) -> None:
    badge = Badge()
    for by in changes:
        before = badge.count
        badge = badge.change(by)
        assert badge.count == max(before + by, 0)
    assert badge.set(-1).count == 0
    assert badge.set(4).count == 4
