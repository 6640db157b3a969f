from heliograph.transport.protocols import NTF, SMP
from heliograph.transport.window import RequestWindow
from heliograph.wire import smp
from heliograph.wire.requests import Request
from heliograph.wire.smp import SmpCommand


def _request(number: int, command: SmpCommand) -> Request[SmpCommand]:
    return Request(bytes([number]), b"", command, b"", None, b"")


def _window(*commands: SmpCommand) -> RequestWindow[SmpCommand]:
    window: RequestWindow[SmpCommand] = RequestWindow(SMP.bulky_commands, limit=2)
    window.add(_request(number, command) for number, command in enumerate(commands))
    return window


def _numbers(requests: list[Request[SmpCommand]]) -> list[int]:
    return [request.corr_id[0] for request in requests]


def test_commands_that_may_be_answered_by_a_message_or_link_data_are_bulky() -> None:
    assert SMP.bulky_commands == {smp.SUB, smp.GET, smp.ACK, smp.LGET, smp.LKEY}
    assert NTF.bulky_commands == frozenset()


def test_small_answers_are_not_limited() -> None:
    window = _window(*[smp.PING()] * 50)
    assert _numbers(window.release(0)) == list(range(50))
    assert not window.waiting


def test_bulky_answers_are_limited_and_the_order_is_kept() -> None:
    window = _window(smp.PING(), smp.GET(), smp.GET(), smp.GET(), smp.PING())
    assert _numbers(window.release(0)) == [0, 1, 2]
    assert window.release(3) == []
    assert window.release(1) == []  # the one without an answer may be bulky
    assert _numbers(window.release(0)) == [3, 4]
    assert not window.waiting


def test_small_answers_follow_while_bulky_ones_are_outstanding() -> None:
    window = _window(smp.GET())
    assert _numbers(window.release(0)) == [0]
    window.add([_request(1, smp.PING())])
    assert _numbers(window.release(1)) == [1]


def test_clear() -> None:
    window = _window(smp.GET(), smp.GET(), smp.GET())
    window.release(0)
    window.clear()
    assert not window.waiting
    assert window.release(0) == []


def test_requests_are_admitted_at_once_if_none_waits_and_none_is_bulky() -> None:
    window = _window()
    ping, get = _request(0, smp.PING()), _request(1, smp.GET())
    assert window.admits([ping, ping])
    assert not window.admits([ping, get])
    window.add([get])
    assert not window.admits([ping])
