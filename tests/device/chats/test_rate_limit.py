from hypothesis import given, strategies as st

from heliograph.device.chats.rate_limit import FORGET_ABOVE, NTF_TIME_INTERVAL, ChatRateLimit


def test_one_of_a_chat_in_a_second() -> None:
    limit = ChatRateLimit()
    limit, first = limit.ask("@1", 10.0)
    limit, soon = limit.ask("@1", 10.9)
    limit, other = limit.ask("@2", 10.9)
    limit, later = limit.ask("@1", 11.0)
    assert (first, soon, other, later) == (True, False, True, True)


def test_a_clock_that_was_set_back_suppresses_nothing() -> None:
    limit, _ = ChatRateLimit().ask("@1", 1000.0)
    assert limit.ask("@1", 5.0)[1]


def test_it_forgets_chats_that_are_quiet() -> None:
    limit = ChatRateLimit()
    for number in range(FORGET_ABOVE + 10):
        limit, _ = limit.ask(f"@{number}", number * 0.5)
    assert len(limit.previous) < FORGET_ABOVE


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 0.5)), max_size=50))
def test_what_is_shown_is_a_second_apart(asked: list[tuple[str, float]]) -> None:
    """And what was suppressed puts nothing off: a steady stream is shown once a second."""
    limit, now = ChatRateLimit(), 0.0
    shown: dict[str, float] = {}
    for chat, passed in asked:
        now += passed
        limit, may = limit.ask(chat, now)
        last = shown.get(chat)
        assert may == (last is None or now - last >= NTF_TIME_INTERVAL)
        if may:
            shown[chat] = now
