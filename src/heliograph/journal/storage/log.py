"""The active segment: frames appended to a file and made durable group by group.

A frame is its length, its checksum, and a whole Arrow IPC stream. An unfinished frame at the end,
after a kill or power loss, is recognized and skipped.
"""

import os
import struct
import zlib
from pathlib import Path

import pyarrow as pa

__all__ = ["Log", "read_log"]

_HEADER = struct.Struct("<II")


class Log:
    """An open log, always a new file. Failures raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def append(self, table: pa.Table) -> None:
        """Append a frame; it is durable on return."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        frame = sink.getvalue()
        header = _HEADER.pack(frame.size, zlib.crc32(frame))
        expected = len(header) + frame.size
        written = os.writev(self._file, [header, frame])
        if written != expected:  # the disk is full or nearly full: the next write would raise
            rest = memoryview(header + frame.to_pybytes())[written:]
            while rest:
                rest = rest[os.write(self._file, rest) :]
        os.fdatasync(self._file)
        self.size += expected

    def close(self) -> None:
        os.close(self._file)


def read_log(path: Path) -> list[pa.Table]:
    """Return all complete frames, in order."""
    data = path.read_bytes()
    tables = []
    at = 0
    while at + _HEADER.size <= len(data):
        length, checksum = _HEADER.unpack_from(data, at)
        frame = data[at + _HEADER.size : at + _HEADER.size + length]
        if not length or len(frame) < length or zlib.crc32(frame) != checksum:
            break
        tables.append(pa.ipc.open_stream(frame).read_all())
        at += _HEADER.size + length
    return tables
