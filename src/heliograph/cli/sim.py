"""`heliograph sim`: simulated push providers, for tests and for trying things out."""

import argparse
import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.cli.arguments import Subparsers
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.p256 import P256Key
from heliograph.transport import loop

if TYPE_CHECKING:
    from heliograph.sim.providers.simulator import SimulatedService, Simulator

_EPILOG = """\
DIR contains ca.crt, which clients must trust, a .jsonl file of all requests, for apns the
provider's key apns.p8, and for fcm service-account.json. Simulators may share a directory. Change
the answers while it runs, through the control endpoint:

  curl -X PUT CONTROL/script -d '{"rules": [{"every": 3, "status": 503, "retry_after": 2}]}'
  curl CONTROL/requests
  curl 'CONTROL/devices/TOKEN?wait=30'
"""
_HELP = {
    "apns": "Apple's push notification service",
    "fcm": "Firebase Cloud Messaging",
    "webpush": "a Web Push service",
}


def add(commands: Subparsers) -> None:
    group = commands.add_parser("sim", help="simulate the push providers on this machine")
    kinds = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for kind, text in _HELP.items():
        parser = kinds.add_parser(
            kind,
            help=f"simulate {text}",
            description=f"Simulate {text}; print one line when ready, and run until stopped.",
            epilog=_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("--dir", type=Path, required=True, help="where its files are")
        parser.add_argument(
            "--host", default="127.0.0.1", type=_host, help="where to listen (%(default)s)"
        )
        parser.add_argument(
            "--port", type=int, default=0, help="the TCP port; 0, the default, is any free one"
        )
        parser.add_argument(
            "--control-port", type=int, default=0, help="the same, for the control endpoint"
        )
        parser.add_argument("--no-record", action="store_true", help="write no .jsonl file")
        parser.set_defaults(run=run, kind=kind)
        if kind == "apns":
            _add_apns(parser)


def _host(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("must be an address or a name")
    return text


def _add_apns(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--key-file", type=Path, help="the provider's key (DIR/apns.p8)")
    parser.add_argument("--topic", help="refuse other topics")
    parser.add_argument("--key-id", help="refuse other keys")
    parser.add_argument("--team-id", help="refuse other teams")
    parser.add_argument(
        "--payload-limit",
        type=int,
        default=4096,
        metavar="BYTES",
        help="refuse larger bodies (%(default)s, as Apple documents; the reference sends 4310)",
    )


def run(options: argparse.Namespace) -> int:
    from heliograph.sim.providers.simulator import Simulator

    try:
        simulator = Simulator(_service(options), options.dir, record=not options.no_record)
    except OSError as exc:
        return _fail(f"{exc.filename or options.dir}: {exc.strerror or exc}")
    except CryptoError as exc:
        return _fail(f"{options.key_file or options.dir}: {exc}")
    try:
        loop.run(_serve(simulator, options))
    except OSError as exc:
        ports = f"--port {options.port}, --control-port {options.control_port}"
        return _fail(f"cannot listen on {options.host} ({ports}): {exc.strerror or exc}")
    return 0


def _service(options: argparse.Namespace) -> "SimulatedService":
    match options.kind:
        case "apns":
            from heliograph.sim.providers.apns import ApnsRules, ApnsService, provider_key

            rules = ApnsRules(options.topic, options.key_id, options.team_id, options.payload_limit)
            if options.key_file is None:
                return ApnsService(provider_key(options.dir), rules)
            return ApnsService(P256Key.from_pem(options.key_file.read_bytes()), rules)
        case "fcm":
            from heliograph.sim.providers.fcm import FcmService, account_key

            return FcmService(account_key(options.dir))
        case _:
            from heliograph.sim.providers.webpush import WebPushService

            return WebPushService()


async def _serve(simulator: "Simulator", options: argparse.Namespace) -> None:
    stopped = asyncio.Event()
    running = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        running.add_signal_handler(number, stopped.set)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(simulator.close)
        await simulator.start(options.host, options.port, options.control_port)
        ca = simulator.authority.file.absolute()
        print(f"ready {simulator.url} control {simulator.control_url} ca {ca}", flush=True)
        await stopped.wait()


def _fail(message: str) -> int:
    print(f"heliograph sim: {message}", file=sys.stderr)
    return 1
