"""Resolve keyed hashes: hash every ID of the store, and keep those that are asked for.

Only the router's own key gives these hashes, so a hash of another router, or of another epoch of
the key, resolves to nothing. A pass costs about a microsecond for each row of the store, in pages,
and is made only when there is something to apply.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from heliograph.actions.contract import NO_SUBJECT, Action
from heliograph.db.dialects import Transaction
from heliograph.journal.hashing import Hasher
from heliograph.ntf.store.actions.subjects import ActionSubject, subjects

__all__ = ["Hash", "resolve", "resolve_hashes", "resolve_in"]

T = TypeVar("T")
PAGE = 5_000
_NOT_STORED = ("source", NO_SUBJECT)
"""Columns whose hashes stand for themselves: they are compared with those of clients' networks."""

Hash = tuple[str, str]
"""The name of a journal's column, and a value in it."""


class ReadStore(Protocol):
    """A source of read transactions."""

    def __call__(self, function: Callable[[Transaction], T]) -> Awaitable[T]: ...


class _Resolver:
    """Hashes that are asked for, by column, and those found so far."""

    def __init__(self, actions: Iterable[Action], hasher: Hasher) -> None:
        self.found: dict[Hash, bytes] = {}
        self.wanted: dict[str, set[str]] = {}
        self._hasher = hasher
        for action in actions:
            if action.kind.subject in _NOT_STORED:
                found = action.kind.subject, action.subject
                self.found[found] = bytes.fromhex(action.subject)
                continue
            self.wanted.setdefault(action.kind.subject, set()).add(action.subject)

    def take(self, column: str, page: Sequence[ActionSubject]) -> bytes | None:
        """Look at a page; return where the next begins, None if there is no need for one."""
        wanted, keyed = self.wanted[column], self._hasher.of(column)
        if not page or keyed is None:
            return None
        for item, value in zip(page, keyed.of([item.hashed for item in page]), strict=True):
            if value in wanted:
                self.found[column, str(value)] = item.entity
                wanted.discard(str(value))
        return page[-1].entity if wanted else None


async def resolve(actions: Iterable[Action], hasher: Hasher, read: ReadStore) -> dict[Hash, bytes]:
    """Return the IDs that hashes of actions stand for; those that resolve to nothing are absent."""
    resolver = _Resolver(actions, hasher)
    await _resolve(resolver, read)
    return resolver.found


async def _resolve(resolver: _Resolver, read: ReadStore) -> None:
    for column in resolver.wanted:
        after: bytes | None = b""
        while after is not None:
            page = await read(partial(subjects, column=column, after=after, limit=PAGE))
            after = resolver.take(column, page)


async def resolve_hashes(
    column: str, hashes: Iterable[str], hasher: Hasher, read: ReadStore
) -> dict[str, bytes]:
    """Return the IDs that hashes of one column stand for."""
    resolver = _Resolver((), hasher)
    resolver.wanted[column] = set(hashes)
    await _resolve(resolver, read)
    return {value: entity for (_, value), entity in resolver.found.items()}


def resolve_in(tx: Transaction, actions: Iterable[Action], hasher: Hasher) -> dict[Hash, bytes]:
    """Return the same as `resolve`, in one transaction."""
    resolver = _Resolver(actions, hasher)
    for column in resolver.wanted:
        after: bytes | None = b""
        while after is not None:
            after = resolver.take(column, subjects(tx, column, after, PAGE))
    return resolver.found
