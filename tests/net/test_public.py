from ipaddress import ip_address

import pytest

from heliograph.net.public import is_number, is_public, is_public_name


@pytest.mark.parametrize(
    "text", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize(
    "text",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
        *("::", "::1", "fe80::1", "fc00::1", "fec0::1", "ff02::1", "2001:db8::1"),
        *(
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2002:a00:1::",
        ),
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    ],
)
def test_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.parametrize("host", ["127.1", "0x7f000001", "2130706433", "a.127", "8.8.8.8.", "0x"])
def test_numbers(host: str) -> None:
    assert is_number(host)
    assert not is_public_name(host)


@pytest.mark.parametrize("host", ["example.com", "smp.simplex.im.", "bücher.de", "a.xn--p1ai"])
def test_public_names(host: str) -> None:
    assert is_public_name(host)


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST.", "a.localhost", "router", "printer.local", "", "."),
        *(
            "metadata.google.internal",
            "kubernetes.default.svc",
            "x.home.arpa",
            "nas.lan",
            "a..com",
            "-a.com",
            "a_b.corp",
        ),
        *("a" * 64 + ".com", "[::1]", "a b.com", "127.0.0.1", "1.2.3.0x7f"),
    ],
)
def test_names_that_are_not_public(host: str) -> None:
    assert not is_public_name(host)
