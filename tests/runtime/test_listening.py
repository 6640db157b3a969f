import errno
import socket

import pytest

from heliograph.runtime.listening import bind_address, decode_hosts, is_wildcard, refusal, refused


@pytest.mark.parametrize(
    ("host", "bind", "expected"),
    [
        ("127.0.0.1", "", "127.0.0.1"),
        ("[::1]", "", "::1"),
        ("localhost", "", "localhost"),
        ("smp.example.com", "", None),
        ("192.0.2.1,abcd.onion", "", None),
        ("192.0.2.1", "*", None),
        ("smp.example.com", "10.0.0.1", "10.0.0.1"),
    ],
)
def test_bind_address(host: str, bind: str, expected: str | None) -> None:
    assert bind_address(decode_hosts(host), bind) == expected


@pytest.mark.parametrize("text", ["", "a b", "host:1", "a,,b"])
def test_not_hosts(text: str) -> None:
    with pytest.raises(ValueError, match="host"):
        decode_hosts(text)


def test_wildcards() -> None:
    assert [is_wildcard(host) for host in decode_hosts("0.0.0.0,[::],127.0.0.1,a.b")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EADDRINUSE, ""), "port 80 of 192.0.2.1 is taken"),
        (OSError(errno.EADDRNOTAVAIL, ""), "not an address of this machine"),
        (OSError(errno.EACCES, ""), "needs a privilege"),
        (socket.gaierror(-2, "x"), "not known here"),
        (OSError(errno.ENOBUFS, ""), "cannot listen on port 80"),
        (OSError("odd"), "cannot listen"),
    ],
)
def test_refusals_say_what_to_do(error: OSError, words: str) -> None:
    assert words in refused(error, "192.0.2.1", 80, "[listen]")
    what, advice = refusal(error, "::", 80, "[listen]")
    assert refused(error, "::", 80, "[listen]") == f"{what}: {advice}"
    assert not advice.startswith((":", "is ")), "an address with colons is not split"
