"""The fuzzer is complete and notices what it looks for; `python -m bench.fuzz` runs it for long."""

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import heliograph.wire
from bench import fuzz
from heliograph.wire.errors import ErrorCode, WireError
from heliograph.wire.primitives import Codec

PARSERS = ("decode_", "unp", "b64decode", "explain", "token_from_json")


def parsers() -> Iterator[tuple[str, str]]:
    for info in pkgutil.iter_modules(heliograph.wire.__path__):
        module = importlib.import_module(f"heliograph.wire.{info.name}")
        for name, value in vars(module).items():
            own = getattr(value, "__module__", module.__name__) == module.__name__
            is_parser = callable(value) and own and name.startswith(PARSERS)
            if not name.startswith("_") and (is_parser or isinstance(value, Codec)):
                yield info.name, name


def test_every_parser_is_fuzzed() -> None:
    fuzzed = {target.name.rpartition(".")[2] for target in fuzz.all_targets()}
    missing = {f"{module}.{name}" for module, name in parsers() if name not in fuzzed}
    assert not missing


def test_a_short_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--count", "20000", "--seed", "1"]) == 0
    assert "seed 1" in capsys.readouterr().out


def test_every_sample_is_run() -> None:
    for target in fuzz.all_targets():
        for sample in target.samples:
            target.run(sample)
        assert target.accepted, target.name


def raises_wire_error(value: object) -> None:
    raise WireError(ErrorCode.CMD_SYNTAX)


@pytest.mark.parametrize(
    "target",
    [
        fuzz.Target("broken.parser", [b"x"], lambda data: int(data, 99)),
        fuzz.Target("broken.encoder", [b"x"], lambda data: data, raises_wire_error),
        fuzz.Target(
            "broken.round_trip", [b"x"], bytes, fuzz.round_trip(bytes, lambda data: data + b"x")
        ),
    ],
    ids=lambda target: target.name,
)
def test_failures_are_reported(
    target: fuzz.Target, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fuzz, "all_targets", lambda: [target])
    assert fuzz.main(["--each", "50"]) == 1
    assert f"{target.name} failed on" in capsys.readouterr().err
    assert target.failure
    assert target.inputs == 1


def test_refusals_are_fine() -> None:
    target = fuzz.Target("refuser", [b"x"], raises_wire_error)
    fuzz.fuzz(fuzz.quotas_of([target], 0, 50), float("inf"), 1)
    assert (target.inputs, target.accepted, target.failure) == (50, 0, "")


def test_a_run_ends_with_its_time() -> None:
    target = fuzz.Target("slow", [b"x"], bytes)
    fuzz.fuzz(fuzz.quotas_of([target], 10**9, None), 0.01, 1)
    assert 0 < target.inputs < 10**9
