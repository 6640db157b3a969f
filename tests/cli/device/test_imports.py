"""Imports of the phone commands: each command is a process, so a user waits for them."""

import subprocess
import sys

HEAVY = ("aiohttp", "numpy", "pyarrow")


def test_short_commands_import_no_heavy_package() -> None:
    script = (
        "import sys, heliograph.cli.device.chats, heliograph.cli.device.phone;"
        f" print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
