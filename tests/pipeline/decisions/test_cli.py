"""`heliograph pipeline decide` and `signer`, as far as they need no Spark."""

from pathlib import Path

import pytest

from heliograph.actions.signing import decode_signer, signing_key
from heliograph.cli.main import main


def test_the_signer_is_printed_and_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert main(["pipeline", "signer", "--dir", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.split()
    assert first == second
    assert decode_signer(first) == signing_key(tmp_path).public


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "name a job: --snapshots PATH, --anomalies, --foreign"),
        (("--snapshots", "nowhere"), "there are no snapshots at nowhere"),
        (("--foreign", "--valid", "169"), "at most 168 hours"),
    ],
)
def test_wrong_arguments_are_said_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: str
) -> None:
    assert main(["pipeline", "decide", "--dir", str(tmp_path), *words]) == 1
    assert text in capsys.readouterr().err
