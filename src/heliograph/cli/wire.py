"""`heliograph wire`: explain the bytes of the protocols."""

import argparse
import binascii
import sys
from typing import Any

from heliograph.wire.errors import WireError
from heliograph.wire.explain import Explanation, explain, explain_handshake

_EXAMPLE = """\
examples:
  heliograph wire decode 01001f00180102...50494e47
  heliograph wire decode --protocol smp --version 16 < block.hex
  heliograph wire decode --protocol ntf --handshake server < hello.hex

The bytes may be a whole block (512 bytes for NTF, 16384 for SMP), its unpadded content, one
transmission, or a bare command. What you do not say is tried, newest version first. Blocks that
SMP encrypts (version 11 and later) must be decrypted first.
"""


def add(commands: Any) -> None:
    group = commands.add_parser("wire", help="explain the bytes of the protocols")
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    decode = actions.add_parser(
        "decode",
        help="explain a hex block or transmission field by field",
        description="Explain a block, transmission or command, given in hex, field by field.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    decode.add_argument("hex", nargs="*", help="the bytes in hex; from standard input if absent")
    decode.add_argument("--protocol", choices=("ntf", "smp"), help="which protocol")
    decode.add_argument("--version", type=int, metavar="N", help="which protocol version")
    decode.add_argument(
        "--handshake",
        choices=("server", "client", "service"),
        help="the bytes are the handshake message of this sender",
    )
    decode.set_defaults(run=run_decode)


def run_decode(options: argparse.Namespace) -> int:
    text = "".join(options.hex) if options.hex else sys.stdin.read()
    try:
        data = bytes.fromhex("".join(text.split()).removeprefix("0x").replace(":", ""))
    except (ValueError, binascii.Error):
        return _fail("the input is not hex: give pairs of the digits 0-9 and a-f")
    if not data:
        return _fail("there is nothing to decode: give the bytes in hex, or on standard input")
    try:
        if options.handshake:
            explanation = explain_handshake(data, options.protocol or "ntf", options.handshake)
        else:
            explanation = explain(data, options.protocol, options.version)
    except WireError as exc:
        return _fail(f"{len(data)} bytes: {exc}")
    _print(explanation)
    return 0


def _print(explanation: Explanation) -> None:
    print(explanation.title)
    width = max((len(line.name) for line in explanation.lines), default=0)
    for line in explanation.lines:
        span = "" if line.start is None else f"{line.start:5}..{line.end:<5} "
        print(f"  {span}{line.name:{width}}  {line.meaning}")


def _fail(message: str) -> int:
    print(f"heliograph wire decode: {message}", file=sys.stderr)
    return 1
