import pytest
from hypothesis import given, strategies as st

from heliograph.device.chats.model import ChatItem, Format, Formatted
from heliograph.device.chats.text import HIDDEN, MAX_PREVIEW, format_text, hide_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hello", "hello"),
        ("the code is #1234#", "the code is ..."),
        ("#a# and #b c#!", "... and ...!"),
        ("issue #5 and #6", "issue #5 and #6"),
        ("## no ##", "## no ##"),
        ("a#b#c", "a#b#c"),
        ("# spaces #", "# spaces #"),
        ("#over\nlines#", "#over\nlines#"),
        ("", ""),
    ],
)
def test_secrets_are_hidden(text: str, shown: str) -> None:
    assert hide_secrets(ChatItem(text, format_text(text))) == shown


def test_a_message_that_is_all_secret() -> None:
    assert format_text("#x#") == (Formatted("x", Format.SECRET),)
    assert hide_secrets(ChatItem("#x#", format_text("#x#"))) == HIDDEN


def test_without_a_text_the_file_is_named() -> None:
    assert hide_secrets(ChatItem("", (), "map.png")) == "map.png"


def test_a_long_text_is_cut() -> None:
    shown = hide_secrets(ChatItem("x" * 5000))
    assert len(shown) == MAX_PREVIEW
    assert shown.endswith("…")


@given(st.text(), st.from_regex(r"[a-z0-9]{4,12}", fullmatch=True), st.text())
def test_a_secret_never_appears(before: str, secret: str, after: str) -> None:
    item = ChatItem(
        "ignored", (Formatted(before), Formatted(secret, Format.SECRET), Formatted(after))
    )
    if secret not in before + HIDDEN + after:
        assert secret not in hide_secrets(item)


@given(st.text())
def test_no_text_is_lost_but_the_signs(text: str) -> None:
    parts = format_text(text)
    kept = "".join(
        f"#{part.text}#" if part.format is Format.SECRET else part.text for part in parts
    )
    assert kept == text
