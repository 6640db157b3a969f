"""At most one notification of a chat in a second."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from heliograph.device.chats.model import ChatId

NTF_TIME_INTERVAL = 1.0
FORGET_ABOVE = 1000

_NONE: Mapping[ChatId, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ChatRateLimit:
    previous: Mapping[ChatId, float] = field(default_factory=lambda: _NONE)
    """When each chat was last notified of; suppressed notifications do not count."""

    def ask(self, chat: ChatId, now: float) -> tuple["ChatRateLimit", bool]:
        """Return whether to show a notification. A clock that was set back suppresses nothing."""
        last = self.previous.get(chat)
        if last is not None and 0 <= now - last < NTF_TIME_INTERVAL:
            return self, False
        kept = self.previous
        if len(kept) >= FORGET_ABOVE:
            kept = {key: at for key, at in kept.items() if 0 <= now - at < NTF_TIME_INTERVAL}
        return ChatRateLimit({**kept, chat: now}), True
