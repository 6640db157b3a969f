"""Protocol versions: ranges, gates and negotiation."""

from dataclasses import dataclass

from heliograph.wire.primitives import Codec, Reader, u16


@dataclass(frozen=True, slots=True)
class VersionRange:
    min: int
    max: int

    def __contains__(self, version: int) -> bool:
        return self.min <= version <= self.max


def negotiate(ours: VersionRange, theirs: VersionRange) -> int | None:
    """Return the highest version that both sides support, None if there is none."""
    version = min(ours.max, theirs.max)
    return version if version in ours and version in theirs else None


def _decode_range(reader: Reader) -> VersionRange:
    versions = VersionRange(reader.u16(), reader.u16())
    if versions.min > versions.max:
        raise reader.fail("the lowest version exceeds the highest")
    return versions


version_range = Codec[VersionRange](
    "u16 min + u16 max",
    lambda versions: u16.encode(versions.min) + u16.encode(versions.max),
    _decode_range,
)

NTF_VERSIONS = VersionRange(1, 3)
NTF_LEGACY_VERSIONS = VersionRange(1, 1)
NTF_AUTH_BATCH = 2
NTF_INVALID_REASON = 3

SMP_VERSIONS = VersionRange(6, 19)
SMP_LEGACY_VERSIONS = VersionRange(6, 6)
SMP_AUTH_COMMANDS = 7
SMP_SENDING_PROXY = 8
SMP_SENDER_AUTH_KEY = 9
SMP_DELETED_EVENT = 10
SMP_ENCRYPTED_BLOCK = 11
SMP_BLOCKED_ENTITY = 12
SMP_PROXY_SERVER = 14
SMP_SHORT_LINKS = 15
SMP_SERVICE_CERTS = 16
SMP_NEW_NTF_CREDS = 17
SMP_CLIENT_NOTICES = 18
SMP_SERVICE_HASH = 19
