"""Folders of somebody else: links, pipes and devices in the place of files are told of, and neither followed nor waited for."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import runnel as rl
from runnel.board import columns
from runnel.board.library import Library
from runnel.board.server import make_app
from runnel.cli.main import main
from runnel.track.files import NotRegularError, open_append, open_regular, read_regular, replace_file
from runnel.track.folder import RunFolder

LIMIT_S = 60
SITE = "http://127.0.0.1:8420"
SECRET = '{"kind": "event", "text": "the secret of the reader"}\n'


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    """A pipe would hold the test up for ever: then it fails."""

    def end(*_: Any) -> None:
        raise TimeoutError("it waits for a pipe, or reads without an end")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.json"
    path.write_text(SECRET)
    return path


def write_run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    row = {"kind": "update", "version": 1, "steps": 10, "metrics": {"return": 1.0}}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "config.json").write_text('{"seed": 1}')
    (folder / "run.json").write_text('{"recipe": "ppo", "subject": "Toy", "seed": 1}')
    return folder


def link(path: Path, secret: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(secret)


def endless(path: Path, secret: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def pipe(path: Path, secret: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def circle(path: Path, secret: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)


FORMS: dict[str, Callable[[Path, Path], None]] = {"link": link, "endless": endless, "pipe": pipe, "circle": circle}
READ = (
    *("metrics.jsonl", "config.json", "run.json", "groups.jsonl", "conversations.jsonl", "samples.jsonl"),
    *("evals.jsonl", "control.json", "log.txt"),
)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Callable[[Path, Path], None]:
    return FORMS[request.param]


def serve(root: Path, tmp_path: Path, **how: Any) -> TestClient:
    library = Library(root, cache=tmp_path / "cache")
    library.refresh()
    return TestClient(make_app(library, **how), base_url=SITE)


# ---------------------------------------------------------------------------------------------------------------- the board
@pytest.mark.parametrize("name", READ)
def test_the_board_starts_and_says_what_it_did_not_read(
    tmp_path: Path, secret: Path, form: Callable[[Path, Path], None], name: str
) -> None:
    form(write_run(tmp_path / "runs" / "a") / name, secret)
    write_run(tmp_path / "runs" / "b")
    with serve(tmp_path / "runs", tmp_path) as client:
        runs = {run["id"]: run for run in client.get("/api/runs").json()["runs"]}
        assert set(runs) == {"a", "b"}
        found = client.get("/api/run", params={"run": "a"}).json()
        told = " ".join(found["problem_texts"])
        if name in ("metrics.jsonl", "config.json", "run.json"):
            assert name in told
            assert "only regular files of the folder are used" in told
        groups = client.get("/api/groups", params={"run": "a"}).json()
        talks = client.get("/api/conversations", params={"run": "a"}).json()
        assert (groups["groups"], talks["conversations"]) == ([], [])
        assert "the secret" not in json.dumps([runs, found, groups, talks])


def test_reports_and_videos_are_files_of_the_folder(tmp_path: Path, secret: Path, form: Callable[[Path, Path], None]) -> None:
    run = write_run(tmp_path / "runs" / "a")
    form(run / "report.html", secret)
    (tmp_path / "films").mkdir()
    (tmp_path / "films" / "v1.mp4").write_text(SECRET)
    (tmp_path / "films" / "index.jsonl").write_text('{"file": "v1.mp4"}\n')
    (run / "episodes").symlink_to(tmp_path / "films")
    with serve(tmp_path / "runs", tmp_path) as client:
        assert client.get("/report", params={"run": "a"}).status_code == 404
        assert client.get("/video", params={"run": "a", "file": "v1.mp4"}).status_code == 404
        assert client.get("/api/episodes", params={"run": "a"}).json()["episodes"] == []
        has = client.get("/api/run", params={"run": "a"}).json()["has"]
        assert not has["report"]
        assert not has["episodes"]


def test_a_report_is_sandboxed(tmp_path: Path) -> None:
    (write_run(tmp_path / "runs" / "a") / "report.html").write_text("<script>alert(1)</script>")
    with serve(tmp_path / "runs", tmp_path) as client:
        for _ in range(3):  # each closes its file
            answer = client.get("/report", params={"run": "a"})
        assert answer.text == "<script>alert(1)</script>"
        assert answer.headers["content-type"].startswith("text/html")
        policy = answer.headers["content-security-policy"].split("; ")
        assert "sandbox" in policy
        assert "default-src 'none'" in policy
        assert not any("script" in part for part in policy)
        part = client.get("/report", params={"run": "a"}, headers={"range": "bytes=1-6"})
        assert (part.status_code, part.text) == (206, "script")


def test_links_in_circles_and_out_of_the_folder_end(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    write_run(root / "real" / "a")
    write_run(tmp_path / "elsewhere" / "b")
    for i in range(12):  # each leads to all of them again: 12 ** 6 folders
        (root / f"again-{i}").symlink_to(root)
        (root / f"self-{i}").symlink_to(f"self-{i}")
    (root / "far").symlink_to(tmp_path / "elsewhere")
    (root / "zero").symlink_to("/dev/zero")
    library = Library(root, cache=tmp_path / "cache")
    library.refresh()
    assert set(library.runs) == {"real/a", "far/b"}
    assert main(["report", str(root)]) == 0


def test_a_file_without_an_end_of_line_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_LINE", 1 << 12)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"x" * (1 << 16) + b"\n" + SECRET.encode())
    blocks = list(columns.read_blocks(path, 0, size=1 << 10))
    assert max(map(len, blocks)) <= 1 << 13
    assert sum(map(len, blocks)) == path.stat().st_size
    found = columns.Columns()
    for block in blocks:
        found.feed(block)
    assert found.offset == path.stat().st_size
    assert len(found.events) == 1
    assert found.num_problems > 0


def test_wrong_names_of_hosts_are_refused_in_words(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a")
    for how in ({}, {"hosts": frozenset[str](), "token": "sesame"}):
        with serve(tmp_path / "runs", tmp_path, **how) as client:
            assert client.get("/api/runs", headers={"host": "[::1"}).status_code == 400
    with serve(tmp_path / "runs", tmp_path) as client:
        asked = {"runs": [], "metrics": []}
        assert client.post("/api/curves", json=asked, headers={"origin": "http://[::1"}).status_code == 403
        assert client.post("/api/curves", json=asked, headers={"origin": SITE}).status_code == 200


@pytest.mark.parametrize("path", ["//evil.example/", "/%5Cevil.example", "//evil.example%2f.."])
def test_the_token_leads_to_the_board_and_nowhere_else(tmp_path: Path, path: str) -> None:
    write_run(tmp_path / "runs" / "a")
    with serve(tmp_path / "runs", tmp_path, hosts=frozenset[str](), token="sesame") as client:
        answer = client.get(f"{SITE}{path}?token=sesame", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")


# ------------------------------------------------------------------------------------------------------------ the commands
@pytest.mark.parametrize("name", READ)
def test_commands_that_read_neither_follow_nor_wait(
    tmp_path: Path, secret: Path, form: Callable[[Path, Path], None], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "runs" / "a")
    form(run / name, secret)
    for words in (["report", str(run)], ["ps", str(run.parent)], ["logs", str(run)], ["card", str(run)]):
        assert main(words) in (0, 2)
    out = capsys.readouterr()
    text = (run / "report.html").read_text() if (run / "report.html").is_file() else ""
    assert "the secret" not in text + (run / "README.md").read_text() + out.out + out.err
    assert secret.read_text() == SECRET


@pytest.mark.parametrize("name", ["report.html", "report.html.new", "README.md", "report_csv/curves.csv", ".lock"])
def test_nothing_is_written_through_a_link(tmp_path: Path, secret: Path, name: str) -> None:
    run = write_run(tmp_path / "runs" / "a")
    (run / "report_csv").mkdir()
    link(run / name, secret)
    for words in (["report", str(run)], ["card", str(run)], ["ps", str(run.parent)]):
        main(words)
    assert secret.read_text() == SECRET


def test_runs_with_links_in_the_place_of_files_are_not_gone_on_with(tmp_path: Path, secret: Path) -> None:
    for name in ("metrics.jsonl", "evals.jsonl", "log.txt", "config.json"):
        run = write_run(tmp_path / name)
        link(run / name, secret)
        for use in (rl.resume, rl.load):
            with pytest.raises(rl.ConfigError, match=rf"{name} is a link; only regular files"):
                use(run)
    assert secret.read_text() == SECRET


def test_a_study_that_is_a_pipe_holds_nothing_up(tmp_path: Path, secret: Path, form: Callable[[Path, Path], None]) -> None:
    run = write_run(tmp_path / "runs" / "a")
    (tmp_path / "runs" / "study").mkdir()
    for name in ("study.json", "tune.json"):
        form(tmp_path / "runs" / "study" / name, secret)
    assert main(["report", str(run), "--over", "seeds", "--unfinished"]) in (0, 2)
    assert main(["tune", "--resume", str(tmp_path / "runs" / "study")]) == 2
    with serve(tmp_path / "runs", tmp_path) as client:
        found = client.get("/api/runs").json()
        assert "the secret" not in json.dumps(found)
        assert "cannot be read" in found["studies"][0]["error"]


# --------------------------------------------------------------------------------------------------------------- the opening
def test_regular_files_alone_are_opened(tmp_path: Path, secret: Path, form: Callable[[Path, Path], None]) -> None:
    path = tmp_path / "file"
    form(path, secret)
    for use in (open_regular, open_append, read_regular):
        with pytest.raises(NotRegularError, match=r"file is a (link|pipe); only regular files"):
            use(path)
    replace_file(path, b"mine")
    assert (read_regular(path), secret.read_text()) == (b"mine", SECRET)
    with pytest.raises(NotRegularError, match="has 4 bytes, where 3 are the most"):
        read_regular(path, most=3)
    with open_append(path) as file:
        file.write(b"!")
    assert path.read_bytes() == b"mine!"


def test_no_folder_on_the_way_may_be_a_link(tmp_path: Path, secret: Path) -> None:
    home = tmp_path / "run"
    (home / "real").mkdir(parents=True)
    (home / "real" / "a").write_text("a")
    (home / "linked").symlink_to(tmp_path)
    assert read_regular(home / "real" / "a", below=home) == b"a"
    with pytest.raises(NotRegularError, match="lies in linked, which is a link"):
        read_regular(home / "linked" / secret.name, below=home)


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path, secret: Path) -> None:
    run = write_run(tmp_path / "a")
    link(run / ".lock", secret)
    with pytest.raises(rl.ConfigError, match=r"\.lock is a link"), RunFolder(run).held():
        pass
    assert secret.read_text() == SECRET
