"""`heliograph wire`: explain the bytes of the protocols."""

import argparse
import binascii
import contextlib
import sys
from collections.abc import Iterator

from heliograph.cli.arguments import Subparsers
from heliograph.wire.errors import WireError
from heliograph.wire.explain import Explanation, explain, explain_frame, explain_handshake
from heliograph.wire.transmissions import NTF_BLOCK_SIZE, SMP_BLOCK_SIZE
from heliograph.wire.versions import NTF_VERSIONS, SMP_VERSIONS, VersionRange

SENDERS = ("server", "client", "service")

_EXAMPLE = """\
examples:
  heliograph wire decode 01001f00180102...50494e47
  heliograph wire decode --protocol smp --version 16 < block.hex
  heliograph wire decode --protocol ntf --handshake server < hello.hex

The bytes may be a whole block (512 bytes for NTF, 16384 for SMP), its unpadded content, one
transmission, a bare command or a handshake message. Without --protocol and --version all are tried,
the newest version first. Decrypt blocks that SMP encrypts (version 11 and later) before.
"""


def add(commands: Subparsers) -> None:
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
        choices=SENDERS,
        help="the bytes are the handshake message of this sender",
    )
    decode.set_defaults(run=run_decode)


def run_decode(options: argparse.Namespace) -> int:
    text = "".join(options.hex) if options.hex else _standard_input()
    try:
        data = bytes.fromhex("".join(text.split()).removeprefix("0x").replace(":", ""))
    except (ValueError, binascii.Error):
        return _fail("the input is not hex: give pairs of the digits 0-9 and a-f")
    if options.version is not None and not _is_known(options.protocol, options.version):
        return _fail(f"no such version: NTF has {_range(NTF_VERSIONS)}, SMP {_range(SMP_VERSIONS)}")
    if not data:
        return _fail("there is nothing to decode: give the bytes in hex, or on standard input")
    try:
        if options.handshake:
            protocol = options.protocol or ("smp" if len(data) == SMP_BLOCK_SIZE else "ntf")
            explanation = explain_handshake(data, protocol, options.handshake)
        else:
            explanation = explain(data, options.protocol, options.version)
    except WireError as exc:
        if not options.handshake:
            found = [*_handshakes(data, options.protocol)]
            for explanation in found:
                _print(explanation)
            if found:
                return 0
            frame = explain_frame(data, options.protocol, options.version)
            if frame is not None:
                _print(frame)
                sys.stdout.flush()
        is_block = len(data) in (NTF_BLOCK_SIZE, SMP_BLOCK_SIZE)
        nor = " (nor as handshake)" if is_block and not options.handshake else ""
        return _fail(f"{len(data)} bytes{nor}: {exc}")
    _print(explanation)
    return 0


def _handshakes(data: bytes, protocol: str | None) -> Iterator[Explanation]:
    """Yield every handshake message that a block may be."""
    if len(data) not in (NTF_BLOCK_SIZE, SMP_BLOCK_SIZE):
        return
    for name in (protocol,) if protocol else ("ntf", "smp"):
        for sender in SENDERS if name == "smp" else SENDERS[:2]:
            with contextlib.suppress(WireError):
                yield explain_handshake(data, name, sender)


def _is_known(protocol: str | None, version: int) -> bool:
    return (protocol != "smp" and version in NTF_VERSIONS) or (
        protocol != "ntf" and version in SMP_VERSIONS
    )


def _range(versions: VersionRange) -> str:
    return f"{versions.min} to {versions.max}"


def _standard_input() -> str:
    return sys.stdin.buffer.read().decode("ascii", "replace")


def _print(explanation: Explanation) -> None:
    print(explanation.title)
    width = max((len(line.name) for line in explanation.lines), default=0)
    for line in explanation.lines:
        span = "" if line.start is None else f"{line.start:5}..{line.end:<5} "
        text = f"  {span}{line.name:{width}}  {line.meaning}"
        encoding = sys.stdout.encoding or "utf-8"
        print(text.encode(encoding, "backslashreplace").decode(encoding))


def _fail(message: str) -> int:
    print(f"heliograph wire decode: {message}", file=sys.stderr)
    return 1
