import pytest

from heliograph.push.reasons import APNS_REASONS, FCM_REASONS, known_reason


@pytest.mark.parametrize(
    ("text", "status", "expected"),
    [
        ("BadDeviceToken", 400, "BadDeviceToken"),
        ("0123456789abcdef", 400, "HTTP-400"),  # one word, and it may be the token
        ("QUOTA_EXCEEDED", 429, "HTTP-429"),  # another provider's
        (None, 503, "HTTP-503"),
        ({"a": 1}, 400, "HTTP-400"),
        ("x", 999, "HTTP"),
    ],
)
def test_only_documented_reasons_are_kept(text: object, status: int, expected: str) -> None:
    assert known_reason(text, status, APNS_REASONS) == expected


def test_reasons_of_fcm() -> None:
    assert known_reason("QUOTA_EXCEEDED", 429, FCM_REASONS) == "QUOTA_EXCEEDED"
