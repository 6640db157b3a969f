"""Every change of state that a machine can make, found by trying every pair."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from heliograph.device.app import app, background, background_task
from heliograph.device.extension import core, entity, pushes
from heliograph.device.states import AppState, CoreState
from heliograph.wire.ntf.tokens import NotificationsMode
from tests.device.app.test_background import INPUTS as BACKGROUND_INPUTS, NOW, in_phase
from tests.device.extension.test_entity import DEFAULT, EXPECTED, INPUTS as ENTITY_INPUTS
from tests.device.extension.test_pushes import INPUTS as PUSH_INPUTS

Edge = tuple[str, str]


def edges() -> dict[str, set[Edge]]:
    """By the heading that the machine has in docs/device.md."""
    found = {
        "The app": _app(),
        "The extension's core": _core(),
        "One push": _pushes(),
        "One connection of a push": _entity(),
        "Background refresh": _background(),
        "A background task": _task(),
    }
    return {name: {edge for edge in all_ if edge[0] != edge[1]} for name, all_ in found.items()}


def _app() -> Iterator[Edge]:
    for state, happened in itertools.product(AppState, app.AppInput):
        yield state.name, app.step(state, happened)[0].name


def _core() -> Iterator[Edge]:
    for state, happened in itertools.product(CoreState, core.CoreInput):
        yield state.name, core.step(state, happened)[0].name


def _pushes() -> Iterator[Edge]:
    for phase, happened in itertools.product(pushes.PushPhase, PUSH_INPUTS):
        yield phase.name, pushes.step(phase, happened)[0].name


def _entity() -> Iterator[Edge]:
    for phase, happened in itertools.product(entity.EntityPhase, ENTITY_INPUTS):
        after, _ = entity.step(entity.NotificationEntity(EXPECTED, DEFAULT, phase), happened)
        yield phase.name, after.phase.name


def _background() -> Iterator[Edge]:
    for phase, happened in itertools.product(background.RefreshPhase, BACKGROUND_INPUTS):
        for mode, due_at in itertools.product(NotificationsMode, (None, NOW + 5)):
            state = replace(in_phase(phase), mode=mode, due_at=due_at)
            yield phase.name, background.step(state, happened, NOW)[0].phase.name


def _task() -> Iterator[Edge]:
    for phase, happened in itertools.product(background_task.TaskPhase, background_task.Input):
        task = background_task.BackgroundTask(phase, NOW)
        yield phase.name, background_task.step(task, happened, NOW)[0].phase.name
