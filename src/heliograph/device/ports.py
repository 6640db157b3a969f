"""The interfaces to an agent and a platform; `heliograph.phone` implements them."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from heliograph.device.chats.content import Content, DatabaseProblem
from heliograph.device.chats.model import (
    ChatId,
    ExpectedMessage,
    FetchedMessage,
    Loaded,
    NotifiedConnection,
    UserId,
)
from heliograph.device.states import AppState, CoreState, Presentation, PreviewMode
from heliograph.wire.ntf.tokens import NotificationsMode


class CoreUnavailable(Exception):
    """The core cannot be opened, for a reason that only the app can solve."""

    def __init__(self, problem: DatabaseProblem) -> None:
        super().__init__(problem.value)
        self.problem = problem


class ExtensionCore(Protocol):
    """An agent over the database that app and extension share, in the extension."""

    async def open(self) -> None:
        """Open or reopen the database; do nothing if it is open. Raises `CoreUnavailable`."""

    async def close(self) -> None:
        """Close the database, for the app to open. May be called twice."""

    async def read_push(self, nonce: bytes, box: bytes) -> Sequence[NotifiedConnection]:
        """Decrypt both layers of a push. Entries whose message was shown already are marked."""

    async def fetch(self, conn_id: str, expected: ExpectedMessage) -> FetchedMessage | None:
        """Return the next message, stored before it is acknowledged; None if there is none."""


class AppCore(Protocol):
    """An agent over the shared database, in the app."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def loaded(self) -> Loaded:
        """Return contact requests and calls that wait for an answer."""

    def messages(self) -> AsyncIterator[FetchedMessage]:
        """Subscribe to all connections; yield each message after it is stored and acknowledged."""

    async def accept_contact(self, chat_id: ChatId) -> None:
        """Greet the requester as the profile that the request was made to."""

    async def answer_call(self, chat_id: ChatId, accept: bool) -> None:
        """Send the answer to a pending call; do nothing if it was answered or has expired."""


class Shared(Protocol):
    """Settings that both processes see."""

    async def app_state(self) -> AppState: ...

    async def set_app_state(self, state: AppState) -> None: ...

    async def core_state(self) -> CoreState: ...

    async def set_core_state(self, state: CoreState) -> None: ...

    async def preview(self) -> PreviewMode: ...

    async def mode(self) -> NotificationsMode: ...

    async def active_user(self) -> UserId | None: ...

    async def set_active_user(self, user: UserId) -> None: ...

    async def badge(self) -> int: ...

    async def change_badge(self, by: int) -> int: ...

    async def count_unread(self) -> int:
        """Set the badge to the number of unread items of all users."""

    async def read_chat(self, chat_id: ChatId) -> int:
        """Mark a chat read, and return the badge."""

    async def set_shown(self, conn_id: str, up_to: int) -> None:
        """Mark messages received until this time as shown."""


class Platform(Protocol):
    """The services of the operating system."""

    def show(self, content: Content, how: Presentation) -> None:
        """Show a notification that the app made itself."""

    def set_badge(self, count: int) -> None: ...

    def submit(self, earliest: float) -> None:
        """Schedule a background refresh, not before this time."""

    def cancel(self) -> None:
        """Cancel the scheduled background refresh."""

    def complete(self, success: bool) -> None:
        """Report that the background refresh is done."""

    def begin_task(self) -> int:
        """Keep the app running for a while, also in the background; return the task's number."""

    def end_task(self, task: int) -> None: ...
