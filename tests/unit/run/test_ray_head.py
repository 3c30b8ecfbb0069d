"""Joining a cluster: what is wrong is said at once, and by its name. Its head: asked, and given up when it is gone."""

from __future__ import annotations

import re
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("ray")

import ray
from ray.exceptions import RayError

from runnel.core.errors import ClusterLost, ConfigError
from runnel.run.launchers.ray_head import Head, attach, own_signals, unreachable


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address_of(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


def init_fails(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def init(**given: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Ray does
        raise error

    monkeypatch.setattr(ray, "init", init)


def test_where_nobody_listens_ray_is_not_even_asked(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray tries for two minutes."""
    init_fails(monkeypatch, AssertionError("not asked"))
    address = address_of(listening)
    listening.close()
    with pytest.raises(ConfigError, match=r"no Ray cluster answers there \(.*refused\); start one with `ray start --head`"):
        attach(address)


@pytest.mark.parametrize("given", ["explicit", "auto"])
def test_a_cluster_that_wants_a_token_is_told_from_none(
    given: str, listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Ray 2.60 says when its head refuses the token, or the want of one."""
    address = address_of(listening)
    init_fails(monkeypatch, ConnectionError(f"Failed to connect to Ray cluster at {address}"))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(
        ConfigError, match=r"refuses this process: its token.*RAY_AUTH_MODE=token.*RAY_AUTH_TOKEN.*get-auth-token"
    ):
        attach(address if given == "explicit" else "auto")
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionError("Could not find any running Ray instance. Please"), "no Ray cluster answers there"),
        (RayError("Token authentication is enabled but no authentication token was found. Ensure"), "RAY_AUTH_TOKEN"),
        (RuntimeError("Version mismatch: the cluster\nmore"), r"cannot be joined \(Version mismatch: the cluster\)$"),
    ],
)
def test_other_reasons_are_told_as_they_are(error: Exception, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    init_fails(monkeypatch, error)
    with pytest.raises(ConfigError, match=text):
        attach("auto")


def test_only_a_host_and_a_port_can_be_tried() -> None:
    assert unreachable("auto") is None
    assert unreachable("ray://10.0.0.1:10001") is None
    assert unreachable("127.0.0.1:99999") is not None


def test_signals_are_those_of_whoever_called() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with own_signals():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    thread = threading.Thread(target=own_signals().__enter__)  # signals are of the main thread alone
    thread.start()
    thread.join()


def test_a_head_is_lost_when_it_has_not_answered_for_long(listening: socket.socket) -> None:
    head = Head(address_of(listening), lost_s=4.0)
    head.ask()
    head.check()
    assert (head.silent(), head.lost()) == (False, "")
    listening.close()
    for _ in range(3):
        head.ask()
        assert (head.silent(), head.lost()) == (True, "")
    head.ask()
    assert re.fullmatch(r"the head of the Ray cluster \(127\.0\.0\.1:\d+\) is gone: .*refused, for 4 s", head.lost())
    with pytest.raises(ClusterLost, match="is gone"):
        head.check()
    with socket.create_server(("127.0.0.1", int(head.address.rpartition(":")[2]))):
        head.ask()
        assert (head.silent(), head.lost()) == (False, ""), "it has come back"


def test_a_head_that_never_answered_us_is_not_called_lost(listening: socket.socket) -> None:
    """Ray has joined it, so it is there: perhaps behind a proxy."""
    address = address_of(listening)
    listening.close()
    head = Head(address, lost_s=1.0)
    for _ in range(10):
        head.ask()
    head.check()
    assert (head.silent(), head.lost()) == (False, "")
