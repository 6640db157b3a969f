import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from heliograph.actions import table
from heliograph.actions.contract import Action, ActionKind, decode_action
from heliograph.actions.signing import KEY_FILE, decode_signer, signing_key
from heliograph.actions.table import append_actions, expire_actions, read_actions
from heliograph.cli.main import main
from heliograph.runtime.errors import IdentityError, StartError
from heliograph.wire.primitives import b64encode
from tests.actions.support import HOUR, NOW, ROUTER, an_action


def test_actions_are_appended_once_and_expire(tmp_path: Path) -> None:
    assert read_actions(tmp_path) == []
    first, second = an_action(), an_action(subject="22" * 16, valid_until=NOW + 2 * HOUR)
    foreign = an_action(router="ff" * 8)
    assert append_actions(tmp_path, [first, first, foreign]) == 2
    assert append_actions(tmp_path, [second, first]) == 1
    found = [decode_action(row) for row in read_actions(tmp_path, ROUTER)]
    assert sorted(found, key=lambda item: item.subject) == [first, second]
    expire_actions(tmp_path, NOW + HOUR)
    assert [decode_action(row) for row in read_actions(tmp_path)] == [second]


def test_an_expired_action_is_decided_again(tmp_path: Path) -> None:
    def at(hours: int) -> Action:
        return an_action(decided_at=NOW + hours * HOUR, valid_until=NOW + (hours + 2) * HOUR)

    assert [append_actions(tmp_path, [at(hours)]) for hours in (0, 1, 2, 3)] == [1, 0, 1, 0]
    ends = {decode_action(row).valid_until for row in read_actions(tmp_path)}
    assert ends == {NOW + 2 * HOUR, NOW + 4 * HOUR}


def test_rows_that_are_no_actions_do_not_keep_actions_from_the_table(tmp_path: Path) -> None:
    append_actions(tmp_path, [an_action(), an_action(subject="22" * 16)])
    bad = pa.Table.from_pylist(
        [{"router": ROUTER}, {"action_id": an_action().action_id, "router": ROUTER}],
        schema=table._schema(),
    )
    write_deltalake(table.table_url(tmp_path), bad, mode="append")
    assert append_actions(tmp_path, [an_action(), an_action(subject="33" * 16)]) == 1
    assert len(read_actions(tmp_path)) == 5


def test_too_many_actions_stop_only_the_router_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipeline still reads all of them, so that it can expire them."""
    monkeypatch.setattr(table, "MAX_ROWS", 1)
    append_actions(tmp_path, [an_action(), an_action(subject="22" * 16)])
    with pytest.raises(StartError, match="has 2 rows for one router"):
        read_actions(tmp_path, ROUTER)
    assert len(read_actions(tmp_path)) == 2


def test_expiring_nothing_writes_nothing(tmp_path: Path) -> None:
    append_actions(tmp_path, [an_action()])
    log = tmp_path / "actions" / "_delta_log"
    before = sorted(log.iterdir())
    expire_actions(tmp_path, NOW)
    assert sorted(log.iterdir()) == before


def test_a_damaged_table_is_an_error_that_names_it(tmp_path: Path) -> None:
    append_actions(tmp_path, [an_action()])
    for file in (tmp_path / "actions" / "_delta_log").glob("*.json"):
        file.write_text("{")
    with pytest.raises(StartError, match=r"the table actions in .* cannot be read"):
        read_actions(tmp_path)


def test_a_missing_package_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(StartError, match=r"deltalake is missing: .*heliograph\[actions\]"):
        read_actions(tmp_path)


def test_the_signing_key_is_made_once_and_private(tmp_path: Path) -> None:
    key = signing_key(tmp_path)
    assert signing_key(tmp_path) == key
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert decode_signer(b64encode(key.public)) == key.public
    (tmp_path / KEY_FILE).write_text("nonsense")
    with pytest.raises(IdentityError, match=KEY_FILE):
        signing_key(tmp_path)


@pytest.mark.parametrize("text", ["", "x", "AAAA", "é"])
def test_a_wrong_signer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="heliograph pipeline signer"):
        decode_signer(text)


def test_wakes_are_listed_without_text_of_their_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = an_action(ActionKind.WAKE_FLEET, evidence={"tokens": "\x1b[2J"})
    append_actions(tmp_path, [evil, an_action(ActionKind.WAKE_FLEET, evidence={"tokens": 3})])
    assert main(["fleet", "status", "--dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "3 tokens" in said


def test_a_table_that_is_half_written_is_one_line_of_text(tmp_path: Path) -> None:
    append_actions(tmp_path, [an_action()])
    append_actions(tmp_path, [an_action(subject="22" * 16)])
    last = tmp_path / "actions" / "_delta_log" / f"{1:020}.json"
    last.write_bytes(last.read_bytes()[:100])
    with pytest.raises(StartError, match=r"\Athe table actions in .* cannot be read: .+\Z"):
        read_actions(tmp_path)
