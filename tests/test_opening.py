import pytest

from heliograph.opening import opening


class Door:
    def __init__(self) -> None:
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True


@opening
async def open_door(is_locked: bool = False) -> Door:
    if is_locked:
        raise PermissionError
    return Door()


async def test_awaited_object_stays_open() -> None:
    door = await open_door()
    assert not door.is_closed


async def test_context_manager_closes_the_object() -> None:
    async with open_door() as door:
        assert not door.is_closed
    assert door.is_closed


async def test_context_manager_closes_the_object_after_an_error() -> None:
    with pytest.raises(ValueError, match="inside"):
        async with open_door() as door:
            raise ValueError("inside")
    assert door.is_closed


async def test_failure_to_open_is_raised() -> None:
    with pytest.raises(PermissionError):
        async with open_door(is_locked=True):
            pytest.fail("it was entered")
