"""What the device needs of an agent and of a platform. `sim.phone` has both."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from heliograph.device.chat import ChatId, ExpectedMessage, NotifiedConnection
from heliograph.device.content import Content, Problem
from heliograph.device.entity import Got
from heliograph.device.manager import Loaded, Presentation
from heliograph.device.states import AppState, CoreState, NotificationsMode, PreviewMode


class CoreUnavailable(Exception):
    """The core cannot be opened, for a reason that only the app can mend."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.value)
        self.problem = problem


class Seal(Protocol):
    """What encrypts texts at rest, if the user gave a passphrase."""

    def seal(self, plain: bytes) -> bytes: ...

    def open(self, sealed: bytes) -> bytes: ...


class ExtensionCore(Protocol):
    """An agent over the database that app and extension share, in the extension."""

    async def open(self) -> None:
        """Make or reopen; nothing if it is open. Raises `CoreUnavailable`."""

    async def close(self) -> None:
        """Leave the database to the app. May be called twice."""

    async def look(self, nonce: bytes, box: bytes) -> Sequence[NotifiedConnection]:
        """Decrypt both layers of a push. An entry that is not expected any more says so."""

    async def fetch(self, conn_id: str, expected: ExpectedMessage) -> Got | None:
        """The next message, stored before it is acknowledged; None if there is none."""


class AppCore(Protocol):
    """The same in the app."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def loaded(self) -> Loaded:
        """Contact requests and calls that wait for an answer."""

    def messages(self) -> AsyncIterator[Got]:
        """Subscribe to everything; each message is stored and acknowledged when it is given."""

    async def accept_contact(self, chat_id: str) -> None: ...


class Shared(Protocol):
    """Settings that both processes see."""

    async def app_state(self) -> AppState: ...

    async def set_app_state(self, state: AppState) -> None: ...

    async def core_state(self) -> CoreState: ...

    async def set_core_state(self, state: CoreState) -> None: ...

    async def preview(self) -> PreviewMode: ...

    async def mode(self) -> NotificationsMode: ...

    async def badge(self) -> int: ...

    async def change_badge(self, by: int) -> int: ...

    async def count_unread(self) -> int:
        """Set the badge to what is unread of all users."""

    async def read_chat(self, chat_id: ChatId) -> int:
        """The user sees a chat: nothing of it is unread. Gives the badge's number."""

    async def set_shown(self, conn_id: str, up_to: int) -> None:
        """The user was told of what was received until this time."""


class Platform(Protocol):
    """What the operating system does at the edges."""

    def show(self, content: Content, how: Presentation) -> None:
        """A notification that the app made itself."""

    def set_badge(self, count: int) -> None: ...

    def submit(self, earliest: float) -> None:
        """Wake the app for a background refresh, not before this time."""

    def cancel(self) -> None:
        """Do not wake it."""

    def complete(self, success: bool) -> None:
        """The background refresh is over."""

    def begin_task(self) -> int:
        """Leave the app running for a while, also in the background; gives a number."""

    def end_task(self, task: int) -> None: ...
