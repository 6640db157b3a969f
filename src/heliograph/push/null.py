"""The provider of AN tokens: accepts everything and delivers nothing."""

from heliograph.push.provider import Accepted, Delivery


class NullProvider:
    async def send(self, delivery: Delivery) -> Accepted:
        return Accepted()

    async def refresh(self) -> None:
        pass

    async def close(self) -> None:
        pass
