"""Writes docs/configuration.md from the definitions: `python docs/configuration.py`."""

import sys
from pathlib import Path

from heliograph.ntf import config as ntf
from heliograph.runtime.config_text import reference
from heliograph.smp import config as smp
from heliograph.system import config as system

TARGET = Path(__file__).with_name("configuration.md")

INTRODUCTION = """\
# Configuration

Everything a router can be told. This page is written by `docs/configuration.py` from the
definitions that load and check a configuration: a test fails when it is out of date.

A router reads `config.toml` in its directory. `init` writes one with every key explained, and those
that have their default commented out. Three places, of which a later one wins:

1. `config.toml`;
2. the environment: the variable named with each key below, for containers;
3. the command line: `--host` and `--port` of `start`.

A text is written in the environment as it is, a list with commas, true and false also as 1 and 0.
`check-config` reports everything that is wrong at once, unknown keys included, and changes nothing.
A change takes effect when the router is restarted.

"""

MESSAGING = """\
## Messaging router

`heliograph smp init`, `start`, `address`, `check-config`; see `heliograph smp --help`.

"""

NOTIFICATION = """\
## Notification router

`heliograph ntf init`, `start`, `address`, `check-config` and more; see `heliograph ntf --help` and
the [runbook](runbook.md). `import-ini` makes a configuration from the reference's.

"""

SYSTEM = """\
## The whole system

`heliograph up`, `down`, `status`, `logs`; see [the whole system](system.md). The routers in its
directory have configurations of their own, as above.

"""


def main() -> str:
    parts = (
        INTRODUCTION,
        MESSAGING,
        reference(smp.SmpConfig, smp.PREFIX),
        NOTIFICATION,
        reference(ntf.NtfConfig, ntf.PREFIX),
        SYSTEM,
        reference(system.SystemConfig, system.PREFIX),
    )
    return "".join(parts).rstrip("\n") + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(TARGET.read_text() != main())
    TARGET.write_text(main())
