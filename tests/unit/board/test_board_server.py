"""The board's answers, and what it refuses."""

from __future__ import annotations

import json

import pytest
from starlette.testclient import TestClient

from runnel.board.library import Library
from runnel.board.server import LOOPBACK, make_app
from runnel.cli.main import main
from runnel.track.folder import RunFolder

SITE = "http://127.0.0.1:8420"


def write_run(root, name, values, **config):
    folder = root / name
    folder.mkdir(parents=True)
    rows = [{"kind": "update", "version": i + 1, "steps": 10 * (i + 1), "metrics": {"return": v}} for i, v in enumerate(values)]
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows) + '{"kind": "end", "status": "finished"}\n'
    )
    (folder / "config.json").write_text(json.dumps({"seed": 1, **config}))
    (folder / "run.json").write_text(json.dumps({"recipe": "ppo", "subject": "Toy", "seed": config.get("seed", 1)}))
    return folder


@pytest.fixture
def runs(tmp_path):
    root = tmp_path / "runs"
    write_run(root, "a", [1.0, 2.0, 3.0], seed=1, ppo={"lr": 0.1})
    write_run(root, "b", [3.0, 4.0, 5.0], seed=2, ppo={"lr": 0.1})
    write_run(root, "c", [0.0, 0.0, 0.0], seed=1, ppo={"lr": 0.2})
    return root


@pytest.fixture
def client(runs, tmp_path):
    library = Library(runs, cache=tmp_path / "cache")
    library.refresh()
    with TestClient(make_app(library), base_url=SITE) as found:
        yield found


def test_curves_of_each_run_and_their_mean(client):
    asked = {"runs": ["a", "b", "c", "gone"], "metrics": ["return"], "axis": "steps"}
    found = client.post("/api/curves", json=asked).json()
    assert found["x"] == [10.0, 20.0, 30.0]
    assert [s["y"] for s in found["series"]] == [[1.0, 2.0, 3.0], [3.0, 4.0, 5.0], [0.0, 0.0, 0.0]]
    grouped = client.post("/api/curves", json=asked | {"group": True}).json()["series"]
    assert [(s["num"], s["y"]) for s in grouped] == [(2, [2.0, 3.0, 4.0]), (1, [0.0, 0.0, 0.0])]
    assert grouped[0]["low"][0] == pytest.approx(2.0 - 12.706, abs=1e-3)
    assert "low" not in grouped[1]


@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        ({"runs": "a"}, "give a list"),
        ({"axis": "lunch"}, "use one of version, steps"),
        ({"smoothing": 1.0}, "must be in [0, 1)"),
        ({"smoothing": "x"}, "must be in [0, 1)"),
        ({"span": [3, 1]}, "two numbers"),
        ({"metrics": None}, "give a list"),
    ],
)
def test_a_wrong_question_is_answered_with_the_fix(client, wrong, fix):
    answer = client.post("/api/curves", json={"runs": ["a"], "metrics": ["return"]} | wrong)
    assert answer.status_code == 400
    assert fix in answer.json()["error"]


def test_settings_that_differ(client):
    found = client.post("/api/configs", json={"runs": ["a", "b", "c"]}).json()
    assert found["varied"] == ["seed", "ppo.lr"]
    assert found["rows"]["c"] == {"seed": 1, "ppo.lr": 0.2}
    two = client.get("/api/compare", params={"a": "a", "b": "c"}).json()
    assert two["config"] == [{"name": "ppo.lr", "a": 0.1, "b": 0.2}]


def test_a_run_that_is_not_there(client):
    answer = client.get("/api/run", params={"run": "../../etc"})
    assert answer.status_code == 404
    assert "no such run" in answer.json()["error"]


def test_other_sites_are_refused(client):
    assert client.get("/api/runs", headers={"host": "evil.example"}).status_code == 421  # DNS that points here
    asked = {"runs": [], "metrics": []}
    assert client.post("/api/curves", json=asked, headers={"origin": "https://evil.example"}).status_code == 403
    assert client.post("/api/curves", json=asked, headers={"origin": SITE}).status_code == 200
    form = client.post("/api/order", content="run=a", headers={"content-type": "text/plain"})
    assert form.status_code == 400  # what a form of another page could send
    headers = client.get("/").headers
    assert "script-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_bodies_are_bounded_and_must_be_json(client):
    json_type = {"content-type": "application/json"}
    assert client.post("/api/curves", content=b"x" * (2 << 20), headers=json_type).status_code == 400
    assert "not JSON" in client.post("/api/curves", content=b"{", headers=json_type).json()["error"]
    assert "JSON object" in client.post("/api/curves", content=b"[]", headers=json_type).json()["error"]


def test_beyond_loopback_nobody_enters_without_the_token(runs, tmp_path):
    library = Library(runs, cache=tmp_path / "cache")
    library.refresh()
    with TestClient(make_app(library, hosts=frozenset(), token="sesame"), base_url="http://10.1.2.3:8420") as client:
        assert client.get("/api/runs").status_code == 401
        assert client.get("/?token=wrong").status_code == 401
        assert client.get("/static/board.css").status_code == 401
        assert client.get("/?token=sesame").status_code == 200  # sets the cookie and leads to the page
        assert client.get("/api/runs").status_code == 200


def test_only_videos_of_the_run_are_served(client, runs):
    (runs / "a" / "episodes").mkdir()
    (runs / "a" / "episodes" / "v1.mp4").write_bytes(b"film")
    (runs / "a" / "episodes" / "secret.txt").write_text("no")
    (runs / "a" / "episodes" / "link.mp4").symlink_to(runs / "a" / "config.json")
    assert client.get("/video", params={"run": "a", "file": "v1.mp4"}).content == b"film"
    part = client.get("/video", params={"run": "a", "file": "v1.mp4"}, headers={"range": "bytes=1-2"})
    assert (part.status_code, part.content) == (206, b"il")  # players ask for parts
    for name in ("secret.txt", "../config.json", "../../b/config.json", "link.mp4", "/etc/passwd", ""):
        assert client.get("/video", params={"run": "a", "file": name}).status_code == 404


def test_groups_are_read_by_line_and_damage_is_counted(client, runs):
    row = {"completion": "yes", "reward": 1.0, "tokens": ["y", "es"]}
    good = {"version": 3, "prompt": "really?", "source": "toy", "rows": [row, row | {"reward": 0.0}]}
    path = runs / "a" / "groups.jsonl"
    path.write_text("broken\n" + json.dumps(good) + "\n" + '{"rows": 3}\n')
    found = client.get("/api/groups", params={"run": "a"}).json()
    assert found["num_problems"] == 2
    assert found["groups"][0] == {
        "version": 3,
        "source": "toy",
        "prompt": "really?",
        "rewards": [1.0, 0.0],
        "size": 2,
        "number": 0,
    }
    assert client.get("/api/groups", params={"run": "a", "number": 0}).json()["rows"][0]["tokens"] == ["y", "es"]
    assert client.get("/api/groups", params={"run": "a", "number": 7}).status_code == 400
    with path.open("a") as file:
        file.write(json.dumps(good | {"version": 4}) + "\n")
    assert [g["version"] for g in client.get("/api/groups", params={"run": "a"}).json()["groups"]] == [4, 3]
    path.write_text(json.dumps(good) + "\n")  # a resume cut it back
    assert len(client.get("/api/groups", params={"run": "a"}).json()["groups"]) == 1


def test_conversations_are_listed_with_how_they_went(client, runs):
    said = [{"role": "system", "content": "You guess."}, {"role": "user", "content": "Which number?"}]
    good = {"number": 9, "version": 3, "return": 0.5, "reason": "turns", "messages": said, "turns": [{}, {}]}
    (runs / "a" / "conversations.jsonl").write_text(json.dumps(good) + "\n" + '{"messages": 3}\n')
    assert client.get("/api/run", params={"run": "a"}).json()["has"]["conversations"]
    found = client.get("/api/conversations", params={"run": "a"}).json()
    head = {"version": 3, "return": 0.5, "reason": "turns", "turns": 2, "prompt": "Which number?", "number": 0}
    assert found == {"conversations": [head], "num_problems": 1}
    assert client.get("/api/conversations", params={"run": "a", "number": 0}).json()["messages"] == said
    refused = client.get("/api/conversations", params={"run": "a", "number": 1})
    assert (refused.status_code, "no such conversation" in refused.json()["error"]) == (400, True)


def test_orders_need_a_running_run_that_allows_them_and_its_token(client, runs):
    def order(op="stop", token="x"):
        return client.post("/api/order", json={"run": "a", "op": op, "token": token}).json()

    assert "no process is training" in order()["error"]
    with RunFolder(runs / "a").held():
        client.app.state.library.refresh()
        assert "token" in order()["error"]  # it was not started with --control
        assert not (runs / "a" / "orders.jsonl").exists()
        token = RunFolder(runs / "a").open_control()
        assert "token" in order(token="guess")["error"]
        assert "use stop, checkpoint or set" in order(op="scale", token=token)["error"]
        assert order(token=token) == {"said": "stop"}
    assert RunFolder(runs / "a").read_orders(0)[0] == [{"op": "stop"}]


def test_live_settings_are_set_with_the_token_and_others_are_refused(client, runs):
    """The board knows which there are by what the run has told; the values are for the run to check."""

    def order(settings, token):
        asked = {"run": "a", "op": "set", "token": token, "settings": settings}
        return client.post("/api/order", json=asked).json()

    folder = RunFolder(runs / "a")
    folder.change_run_info(live={"trainer": {"names": ["ppo.lr", "ppo.clip_range"], "members": ["red"]}})
    with folder.held():
        token = folder.open_control()
        client.app.state.library.refresh()
        assert client.get("/api/run", params={"run": "a"}).json()["has"]["live"] == ["ppo.lr", "ppo.clip_range"]
        assert "token" in order({"ppo.lr": 1e-4}, "guess")["error"]
        for settings, why in (
            (
                {"ppo.gamma": 0.9},
                "ppo.gamma = 0.9: may not change while this run goes on; live settings: ppo.lr, ppo.clip_range",
            ),
            ({"blue/ppo.lr": 0.9}, "blue/ppo.lr = 0.9: may not change"),
            ({"ppo.lr": [1]}, "give a number, true, false, null or a text"),
            ({}, "give names and values; live settings of this run: ppo.lr"),
            ("ppo.lr", "give names and values"),
        ):
            assert why in order(settings, token)["error"]
        assert not folder.orders.exists()
        good = {"ppo.lr": "linear(1e-3, 0)", "red/ppo.clip_range": 0.1}
        assert order(good, token) == {"said": "set", "settings": good}
    assert folder.read_orders(0)[0] == [{"op": "set", "settings": good}]


def test_a_league_is_told_and_a_run_without_one_is_refused(client, runs):
    """Lines and columns of the matrix are members by name; what is damaged is told beside the rest."""
    main = {"name": "main", "role": "main", "live": True}
    first = {"name": "main@0", "role": "main", "live": False, "version": 0, "parent": "main", "checksum": "a"}
    games, seats = {"main": {"main@0": [6, 2, 2, 10]}}, {"main": {"main@0": [[6, 0, 0], [0, 2, 2]]}}
    line = {"version": 9, "members": [main, first], "games": games, "by_seat": seats, "elo": {"main": 1100.0, "main@0": 1000.0}}
    (runs / "a" / "league.jsonl").write_text(json.dumps(line) + "\n{half\n")
    found = client.get("/api/league?run=a").json()
    assert [m["title"] for m in found["matrices"]] == ["all seats", "seat 0", "seat 1"]
    assert found["matrices"][0] | {"title": ""} == {
        "title": "",
        "rows": ["main"],
        "columns": ["main", "main@0"],
        "values": [[None, 0.7]],
        "games": [[0, 10]],
    }
    assert found["matrices"][2]["values"] == [[None, 0.25]]
    assert found["history"] == {"main": [[9, 1100.0]]}
    assert found["members"][1]["rating"]["held"]
    assert any("line 2 is not readable" in text for text in found["warnings"])
    assert client.get("/api/run?run=a").json()["has"]["league"]
    assert not client.get("/api/run?run=b").json()["has"]["league"]
    refused = client.get("/api/league?run=b")
    assert refused.status_code == 404
    assert "league.jsonl cannot be read" in refused.json()["error"]


def test_damaged_studies_are_named(client, runs):
    (runs / "tuned").mkdir()
    (runs / "tuned" / "study.json").write_text("{")
    client.app.state.library.refresh()
    assert "cannot be read" in client.get("/api/runs").json()["studies"][0]["error"]
    assert "cannot be read" in client.get("/api/study", params={"study": "tuned"}).json()["error"]
    assert client.get("/api/study", params={"study": "nope"}).status_code == 404


def test_a_bad_folder_or_port_is_told_in_words(tmp_path, capsys):
    assert main(["board", str(tmp_path / "nowhere")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    import socket

    with socket.create_server((LOOPBACK[0], 0)) as taken:
        assert main(["board", str(tmp_path), "--port", str(taken.getsockname()[1])]) == 2
    assert "use another --port" in capsys.readouterr().err
