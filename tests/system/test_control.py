"""Orders over the board: only with the token of this start, and on every launcher."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tiny_slices import settings

import runnel as rl
from runnel.track.folder import RunFolder


def test_only_the_token_of_this_start_may_control(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert not folder.may_control("")
    first = folder.open_control()
    assert folder.may_control(first)
    assert not any(folder.may_control(wrong) for wrong in ("", first[:-1], first + "x", "\ud800", "é"))
    assert first not in folder.control.read_text(), "it is not written down"
    second = folder.open_control()
    assert (folder.may_control(first), folder.may_control(second)) == (False, True)
    for damaged in ("{", "[]", '{"salt": 1, "sha256": null}', "{}"):
        folder.control.write_text(damaged)
        assert not folder.may_control(second)
    folder.close_control()
    assert not folder.may_control(second)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("launcher", ["inproc", "local"])
def test_a_checkpoint_and_a_stop_are_ordered_and_told(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("runnel.run.session.ORDERS_S", 0.0)
    folder, asked = RunFolder(tmp_path / "run"), list[bool]()

    def on_update(row: dict[str, Any]) -> None:
        if row["version"] == 5:
            (token,) = re.findall(r"control token: (\S+); the board asks for it", capsys.readouterr().err)
            asked.append(folder.may_control(token))
            folder.add_order({"op": "checkpoint"})

    def on_checkpoint(row: dict[str, Any]) -> None:
        folder.add_order({"op": "stop"})

    recipe, tiny = settings("ppo", launcher=launcher, control=True, total_updates=100_000, checkpoint={"every": 0})
    run = rl.train(
        recipe, out=str(tmp_path), on_update=on_update, on_checkpoint=on_checkpoint, **{**tiny, "eval": {"episodes": 0}}
    )
    assert (asked, run.status) == ([True], "stopped")
    events = [(r["what"], r["text"].partition(",")[0]) for r in run.rows("event") if r["what"] in ("order", "checkpoint")]
    assert events[0] == ("order", "a checkpoint was ordered")
    assert events[1][0] == "checkpoint"
    assert events[2] == ("order", "stopped by order")
    assert not folder.control.exists(), "a run that has ended takes no orders"
    assert json.loads(folder.config.read_text())["control"] is True
