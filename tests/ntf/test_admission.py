"""Which commands the router admits. `test_timing` compares what refusals cost."""

from heliograph.crypto.keys import generate_key_pair
from heliograph.wire import ntf
from heliograph.wire.addresses import Scheme, ServerAddress, SMPQueueNtf, decode_host
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.tokens import SubscriptionState, TokenStatus
from tests.keys import fixed_bytes
from tests.ntf.support import AUTH, NtfWorld, a_device

ADDRESS = ServerAddress(Scheme.SMP, (decode_host("192.0.2.1"),), "", fixed_bytes("smp"))


async def test_a_wrong_key_opens_nothing(small_world: NtfWorld) -> None:
    phone = await small_world.registered()
    subscription = await phone.subscribe(await small_world.queue())
    for algorithm in Algorithm:
        wrong = generate_key_pair(algorithm).private
        for command in (ntf.TCHK(), ntf.TDEL(), ntf.TRPL(a_device()), ntf.TCRN(0), ntf.TVFY(b"")):
            assert await phone.ask(command, phone.token_id, wrong) == AUTH
        for of_subscription in (ntf.SCHK(), ntf.SDEL()):
            assert await phone.ask(of_subscription, subscription, wrong) == AUTH
        tnew = ntf.TNEW(a_device(), phone.keys.public, phone.dh_keys.public)
        assert await phone.ask(tnew, b"", wrong) == AUTH
        snew = ntf.SNEW(phone.token_id, SMPQueueNtf(ADDRESS, b"n"), wrong)
        assert await phone.ask(snew, b"", wrong) == AUTH
    assert (await phone.schk(subscription)).state is SubscriptionState.ACTIVE
    assert await phone.tchk() is TokenStatus.ACTIVE


async def test_kinds_of_entity_are_not_mixed_up(small_world: NtfWorld) -> None:
    phone = await small_world.registered()
    subscription = await phone.subscribe(await small_world.queue())
    for command in (ntf.TCHK(), ntf.TDEL(), ntf.TCRN(20)):
        assert await phone.ask(command, subscription) == AUTH
    for of_subscription in (ntf.SCHK(), ntf.SDEL()):
        assert await phone.ask(of_subscription, phone.token_id) == AUTH
