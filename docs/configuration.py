"""Writes docs/configuration.md from the definitions: `python docs/configuration.py`."""

import sys
from pathlib import Path

from heliograph.runtime.config_text import reference
from heliograph.smp.config import PREFIX, SmpConfig

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

## Messaging router

`heliograph smp init`, `start`, `address`, `check-config`; see `heliograph smp --help`.

"""


def main() -> str:
    return INTRODUCTION + reference(SmpConfig, PREFIX).rstrip("\n") + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(TARGET.read_text() != main())
    TARGET.write_text(main())
