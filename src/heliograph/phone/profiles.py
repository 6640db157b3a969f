"""The profiles of a phone: each has contacts of its own, and they share the token and the badge.

A hidden profile is listed nowhere, notifies of nothing, and is used only with its password.
"""

import asyncio

from nacl import pwhash
from nacl.exceptions import InvalidkeyError

from heliograph.agent.agent import Agent
from heliograph.agent.keys import Cost
from heliograph.db.dialects import Transaction
from heliograph.device.chats import store as chats, users
from heliograph.device.chats.body import Greeting, encode_body
from heliograph.device.chats.model import User
from heliograph.device.store import DeviceStore
from heliograph.phone.core import SharedSettings
from heliograph.phone.errors import PhoneError
from heliograph.wire.ntf.tokens import NotificationsMode

NO_PROFILE = "this phone has no profile: make one with `heliograph device user create NAME`"


class Profiles:
    def __init__(self, store: DeviceStore, cost: Cost) -> None:
        """`cost` is that of hashing the password of a hidden profile."""
        self._store = store
        self._cost = cost

    async def list(self) -> list[User]:
        """Return the profiles that are not hidden."""
        return [user for user in await self._store.read(users.users) if not user.is_hidden]

    async def active(self) -> User | None:
        return await self._store.read(users.active_user)

    async def find(self, name: str | None = None, password: str | None = None) -> User:
        """Return the profile of this name, or the active one. Raises `PhoneError`."""
        if name is None:
            active = await self.active()
            if active is None:
                raise PhoneError(NO_PROFILE)
            return active
        for user in await self._store.read(users.users):
            if user.name == name and await self._opens(user, password):
                return user
        known = ", ".join(user.name for user in await self.list()) or "none"
        raise PhoneError(f"there is no profile {name!r}; there are: {known}")

    async def create(self, name: str) -> User:
        """Add a profile; it becomes active if it is the only one."""
        encode_body(Greeting(name))  # raises BodyError for a name that contacts could not decode

        def add(tx: Transaction) -> User | None:
            if any(user.name == name for user in users.users(tx)):
                return None
            return users.get_user(tx, users.add_user(tx, name))

        user = await self._store.write(add)
        if user is None:
            raise PhoneError(f"there is a profile {name!r} already: choose another name")
        return user

    async def switch(self, name: str) -> User:
        """Make a profile active. A hidden one cannot be: it would be shown."""
        user = await self.find(name)
        await self._store.write(lambda tx: users.set_active_user(tx, user.user_id))
        return user

    async def hide(self, name: str, password: str) -> None:
        user = await self.find(name)
        if user.is_active:
            raise PhoneError(f"{name!r} is the active profile: switch to another one first")
        if not password:
            raise PhoneError("the password of a hidden profile must not be empty")
        hashed = await asyncio.to_thread(
            pwhash.argon2id.str, password.encode(), self._cost.operations, self._cost.memory
        )
        await self._store.write(
            lambda tx: users.set_view_password(tx, user.user_id, hashed.decode())
        )

    async def unhide(self, name: str, password: str) -> None:
        user = await self.find(name, password)
        await self._store.write(lambda tx: users.set_view_password(tx, user.user_id, None))

    async def delete(self, agent: Agent, name: str, password: str | None = None) -> None:
        """Delete a profile and its connections; with the last profile, the token too.

        The profile is removed last, so that a deletion that was interrupted can be repeated.
        """
        user = await self.find(name, password)
        if len(await self._store.read(users.users)) == 1 and await agent.token_info() is not None:
            await agent.delete_token()
            await SharedSettings(self._store).set_mode(NotificationsMode.OFF)
        known = set(await agent.connections())
        for row in await self._store.read(lambda tx: chats.contacts(tx, user.user_id)):
            if row.conn_id in known:
                await agent.delete_connection(row.conn_id)
        await self._store.write(lambda tx: users.delete_user(tx, user.user_id))

    async def _opens(self, user: User, password: str | None) -> bool:
        if user.view_password is None:
            return True
        hashed = user.view_password.encode()
        try:
            return await asyncio.to_thread(pwhash.verify, hashed, (password or "").encode())
        except InvalidkeyError:
            return False
