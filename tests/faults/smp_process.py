"""A messaging router as a process of its own, to be killed: `python -m tests.faults.smp_process`.

Takes a store's URL and a file with its credentials, and prints its port when it listens.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from heliograph.crypto.certificates import TlsCredentials
from heliograph.smp.router import SmpRouter
from heliograph.smp.settings import SmpSettings
from heliograph.transport import loop
from heliograph.transport.handshake import ServerIdentity
from heliograph.transport.protocols import SMP
from heliograph.transport.server import Listener


def save_credentials(path: Path, credentials: TlsCredentials) -> None:
    chain = [certificate.hex() for certificate in credentials.chain]
    path.write_text(json.dumps([chain, credentials.private_key.hex()]))


def load_credentials(path: Path) -> TlsCredentials:
    chain, private_key = json.loads(path.read_text())
    return TlsCredentials(tuple(map(bytes.fromhex, chain)), bytes.fromhex(private_key))


async def serve(url: str, credentials: Path, interval: float) -> None:
    router = await SmpRouter.start(url, SmpSettings(ntf_delivery_interval=interval))
    identity = ServerIdentity.of(load_credentials(credentials), time.time())
    listener = Listener(SMP, identity, router, request_client_certificate=True)
    port = await listener.start("127.0.0.1", 0)
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    loop.run(serve(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])))
