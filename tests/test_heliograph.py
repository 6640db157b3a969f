"""The names that `import heliograph` offers."""

import subprocess
import sys

import pytest

import heliograph


@pytest.mark.parametrize("name", heliograph.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(heliograph, name) is not None
    assert name in dir(heliograph)


def test_names_are_those_of_the_packages() -> None:
    from heliograph.transport.client import Client
    from heliograph.wire.ntf import NtfCommand

    assert heliograph.Client is Client
    assert heliograph.NtfCommand is NtfCommand


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = heliograph.nothing


def test_importing_it_is_cheap() -> None:
    code = "import sys, heliograph; print([m for m in sys.modules if m.startswith('heliograph')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['heliograph']\n"
