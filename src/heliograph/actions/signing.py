"""The key with which a pipeline signs its actions: a file beside its tables, made when needed."""

from pathlib import Path

from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import KeyPair, algorithm_of, generate_key_pair, public_key
from heliograph.runtime.errors import IdentityError
from heliograph.runtime.files import write_file
from heliograph.wire.errors import WireError
from heliograph.wire.keys import Algorithm
from heliograph.wire.primitives import b64decode, b64encode

__all__ = ["KEY_FILE", "decode_signer", "signing_key"]

KEY_FILE = "actions.key"


def signing_key(directory: Path) -> KeyPair:
    """Return the key of a pipeline; make it if there is none. Raises `IdentityError`."""
    file = directory / KEY_FILE
    try:
        if not file.exists():
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            made = generate_key_pair(Algorithm.ED25519)
            write_file(file, f"{b64encode(made.private)}\n".encode(), 0o600)
        private = b64decode(file.read_bytes().decode(errors="replace").strip())
        return KeyPair(public_key(private), private)
    except OSError as exc:
        raise IdentityError(f"{file}: {exc.strerror}: the pipeline must be able to use it") from exc
    except (WireError, CryptoError) as exc:
        raise IdentityError(
            f"{file}: is not a key: restore it from a backup, or remove it and give routers the"
            " new one, as [actions] signer"
        ) from exc


def decode_signer(text: str) -> bytes:
    """Return a public key from a router's configuration. Raises `ValueError`."""
    try:
        public = b64decode(text)
        if algorithm_of(public) is Algorithm.ED25519:
            return public
    except (WireError, CryptoError):
        pass
    raise ValueError("must be the line that `heliograph pipeline signer` prints")
