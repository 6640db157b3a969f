from heliograph.push.null import NullProvider
from heliograph.push.provider import Accepted
from heliograph.wire.ntf.tokens import APNSDeviceToken, PushProvider
from tests.push.support import delivery


async def test_accepts_everything() -> None:
    provider = NullProvider()
    device = APNSDeviceToken(PushProvider.APNS_NULL, b"test_ntf_token")
    assert await provider.send(delivery(device)) == Accepted()
    await provider.refresh()
    await provider.close()
    await provider.close()
