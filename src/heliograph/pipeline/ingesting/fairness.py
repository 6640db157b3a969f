"""The order in which segments of many routers are read."""

from collections import defaultdict
from collections.abc import Iterable

from heliograph.pipeline.source import Segment


def interleave(found: Iterable[Segment]) -> list[Segment]:
    """Return one segment of each router in turn, each router's oldest first.

    So a router with a large backlog delays the others by one segment, not by its backlog.
    """
    by_router: dict[str, list[Segment]] = defaultdict(list)
    for item in found:
        by_router[item.name.rpartition("/")[0]].append(item)
    turns = []
    for router, items in by_router.items():
        items.sort(key=lambda item: (item.modified, item.name))
        turns += [(turn, router, item) for turn, item in enumerate(items)]
    turns.sort(key=lambda entry: (entry[0], entry[2].modified, entry[1]))
    return [item for _, _, item in turns]
