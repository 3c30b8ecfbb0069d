"""The board's web server: static files, JSON responses, and a stream that says which runs have changed."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from runnel.board import responses
from runnel.board.behaviour import episode_file
from runnel.board.library import Library
from runnel.core.errors import ConfigError
from runnel.report.page import POLICY as REPORT_POLICY
from runnel.track.files import open_regular
from runnel.track.folder import Row
from runnel.track.sinks import encode

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.datastructures import Headers
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError as error:
    raise ConfigError("command", "board", f"needs a web server ({error}); pip install 'runnel[board]'") from error

STATIC = Path(__file__).with_name("static")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
REFRESH_S = 1.0
"""Seconds between two looks at the files."""
BEAT_S = 15.0
"""Seconds after which a quiet stream sends a comment, so that proxies and browsers do not close it."""
MAX_BODY = 1 << 20
COOKIE = "runnel-board"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

SANDBOX = f"{REPORT_POLICY}; sandbox; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Policy of a report, which may come from somebody else: it may run no script and send nothing, and its origin is not the
board."""
VIDEOS = {".mp4": "video/mp4", ".webm": "video/webm"}


class RequestGuard:
    """Refuses requests that a page of another site could send: foreign hosts and origins. Beyond loopback it asks for the
    token."""

    def __init__(self, app: ASGIApp, *, hosts: frozenset[str], token: str) -> None:
        self._app, self._hosts, self._token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        refused = self._refuse(Headers(scope=scope), scope)
        if refused is not None:
            return await refused(scope, receive, send)

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                extra = {b"content-security-policy": CSP.encode(), b"x-content-type-options": b"nosniff"}
                extra |= {b"referrer-policy": b"no-referrer", b"cache-control": b"no-cache"}
                message["headers"] = [*message["headers"], *((k, v) for k, v in extra.items() if k not in given)]
            await send(message)

        await self._app(scope, receive, send_safely)

    def _refuse(self, headers: Headers, scope: Scope) -> Response | None:
        try:
            host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        except ValueError:  # a bracket is missing, say: [::1
            return PlainTextResponse("this is not the name of a host", 400)
        if self._hosts and host not in self._hosts:
            # a foreign name that leads here is how a page of another site reaches a local server (DNS rebinding)
            text = f"this board is served as {', '.join(sorted(self._hosts))}, not as {host!r}"
            return PlainTextResponse(text, 421)
        origin = headers.get("origin")
        if scope["method"] == "POST" and origin is not None and origin.partition("://")[2] != headers.get("host"):
            return PlainTextResponse("requests from other sites are refused", 403)
        if not self._token:
            return None
        given = Request(scope).query_params.get("token", "")
        if given and secrets.compare_digest(given.encode(), self._token.encode()):
            redirect = RedirectResponse("/", 303)  # not to the path of the request: //elsewhere would be another site
            redirect.set_cookie(COOKIE, self._token, httponly=True, samesite="strict")
            return redirect
        kept = Request(scope).cookies.get(COOKIE, "")
        if secrets.compare_digest(kept.encode(), self._token.encode()):
            return None
        return PlainTextResponse("this board asks for its token: open the address that `runnel board` printed", 401)


class Live:
    """Tells open pages which runs have changed. A thread of its own looks at the files."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._queues: set[asyncio.Queue[str]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="board-watch", daemon=True)
        self._status: dict[str, str] = {}

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)
        for queue in self._queues:
            queue.put_nowait("")

    def _watch(self) -> None:
        pause = REFRESH_S
        while not self._stop.wait(pause):
            began = time.perf_counter()
            try:
                changed = self.library.refresh() | self._ended()
                self.library.problem = ""
            except Exception as error:  # a network disk may come back, so go on; until then the page must show the problem
                changed = set()
                self.library.problem = f"{self.library.root} cannot be read now ({type(error).__name__}: {error})"
            pause = max(REFRESH_S, 4 * (time.perf_counter() - began))  # with very many folders, use at most a fifth of a core
            problem = self.library.problem
            if (changed or problem) and self._loop is not None:
                self._loop.call_soon_threadsafe(self._tell, encode({"changed": sorted(changed), "problem": problem}))

    def _ended(self) -> set[str]:
        """Runs whose status has changed although no file has: they were killed."""
        now = {key: run.status(self.library.held) for key, run in list(self.library.runs.items())}
        changed = {key for key, status in now.items() if self._status.get(key, status) != status}
        self._status = now
        return changed

    def _tell(self, text: str) -> None:
        for queue in self._queues:
            queue.put_nowait(text)

    async def stream(self) -> AsyncIterator[str]:
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._queues.add(queue)
        try:
            yield "retry: 2000\n\n"
            while not self._stop.is_set():
                try:
                    text = await asyncio.wait_for(queue.get(), BEAT_S)
                    yield f"data: {text}\n\n" if text else ""
                except TimeoutError:
                    yield ": still here\n\n"
        finally:
            self._queues.discard(queue)


Respond = Callable[[Library, responses.Query], Row]
GET = (
    *(responses.runs, responses.run, responses.compare, responses.episodes),
    *(responses.groups, responses.conversations, responses.league, responses.study),
)
"""Functions that serve requests with data in the address: /api/runs is served by `runs`."""
POST = (responses.curves, responses.metrics, responses.configs, responses.order)
"""Functions that serve requests with a JSON body."""


def make_app(library: Library, *, hosts: frozenset[str] = frozenset(LOOPBACK), token: str = "") -> Starlette:
    """The web application over a library of runs. If `token` is not empty, requests need it."""
    live = Live(library)

    async def events(request: Request) -> Response:
        return StreamingResponse(live.stream(), media_type="text/event-stream")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        live.start()
        yield
        live.stop()
        library.close()

    routes = [
        Route("/", _index),
        *(Route(f"/api/{make.__name__}", _endpoint(library, make)) for make in GET),
        *(Route(f"/api/{make.__name__}", _endpoint(library, make), methods=["POST"]) for make in POST),
        Route("/api/live", events),
        Route("/video", _video),
        Route("/report", _report),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    app = Starlette(routes=routes, middleware=[Middleware(RequestGuard, hosts=hosts, token=token)], lifespan=lifespan)
    app.state.library = library
    return app


def _endpoint(library: Library, make: Respond) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            asked = await _body(request) if request.method == "POST" else request.query_params
            return _json(await run_in_threadpool(make, library, asked))
        except ConfigError as error:
            return _json({"error": str(error)}, 404 if error.field == "run" else 400)

    return endpoint


async def _index(request: Request) -> Response:
    return FileResponse(STATIC / "index.html")


async def _video(request: Request) -> Response:
    run = request.app.state.library.runs.get(request.query_params.get("run", ""))
    path = episode_file(run.folder, request.query_params.get("file", "")) if run else None
    response = path and _file(path, run.folder.path, VIDEOS[path.suffix])
    return response or PlainTextResponse("there is no such video", 404)


async def _report(request: Request) -> Response:
    run = request.app.state.library.runs.get(request.query_params.get("run", ""))
    response = run and _file(run.folder.report, run.folder.path, "text/html", {"content-security-policy": SANDBOX})
    return response or PlainTextResponse("there is no such report", 404)


def _file(path: Path, below: Path, kind: str, headers: Mapping[str, str] | None = None) -> Response | None:
    """A response with a file of a run's folder; None if it is no regular file."""
    try:
        return _OpenFile(open_regular(path, below=below), kind, headers)
    except OSError:
        return None


class _OpenFile(FileResponse):
    """A response with a file that is open already. To open it again by its name could open another file that replaced it."""

    def __init__(self, file: BinaryIO, kind: str, headers: Mapping[str, str] | None) -> None:
        path = f"/proc/self/fd/{file.fileno()}"
        super().__init__(path, stat_result=os.fstat(file.fileno()), media_type=kind, headers=headers)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)


async def _body(request: Request) -> responses.Query:
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise ConfigError("body", request.headers.get("content-type"), "send JSON, as application/json")
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY:
            raise ConfigError("body", len(data), f"send at most {MAX_BODY} bytes")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError("body", "…", f"this is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise ConfigError("body", type(found).__name__, "send a JSON object")
    return found


def _json(data: Row, status: int = 200) -> Response:
    return Response(encode(data).encode(errors="backslashreplace"), status, media_type="application/json")


def serve(folder: Path, *, host: str = "127.0.0.1", port: int = 8420, say: Callable[[str], None] = print) -> None:
    """Serve the board until the process is interrupted."""
    library = Library(folder, num_processes=max(1, (os.cpu_count() or 2) - 1))
    token = "" if host in LOOPBACK else secrets.token_urlsafe(24)
    listening = _listen(host, port)
    port = listening.getsockname()[1]
    library.refresh()
    shown = f"[{host}]" if ":" in host else host
    say(f"runnel board: {len(library.runs)} runs under {folder}")
    say(f"open http://{shown}:{port}/" + (f"?token={token}" if token else "") + "   (Ctrl-C ends it)")
    hosts = frozenset(LOOPBACK) if not token else frozenset()
    app = make_app(library, hosts=hosts, token=token)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, server_header=False)
    uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port < 1 << 16:
        raise ConfigError("port", port, "use 1 to 65535, or 0 for any that is free")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        fix = f"cannot listen there ({error.strerror}); use another --port, 0 for any"
        raise ConfigError("port", f"{host}:{port}", fix) from error
