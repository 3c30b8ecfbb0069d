"""Both forms of the sandbox behind one call, so that every attack is tried on both: a program of its own, and a session."""

from __future__ import annotations

from runnel.llm.sandbox.run import SandboxConfig, SandboxResult, run_python
from runnel.llm.sandbox.session import SessionConfig, SessionPool

FORMS = ("program", "session")
SHARED = ("cpu_s", "memory_mb", "file_mb", "scratch_mb", "threads", "output_kb", "packages", "allow_weaker", "wall_s")


def run(form: str, code: str, *, config: SandboxConfig, without: tuple[str, ...] = ()) -> SandboxResult:
    """Run code in one form of the sandbox. A session answers to one call, what it says of an error stands in `stderr`."""
    if form == "program":
        return run_python(code, config=config, without=without)
    limits = SessionConfig(**{name: getattr(config, name) for name in SHARED})
    with SessionPool(limits, warm=0, without=without) as pool, pool.take() as session:
        found = session.run(code)
    status = "failed" if found.status == "died" else found.status
    return SandboxResult(
        status, int(found.status != "ok"), found.stdout, found.error, found.duration_s,
        broken=session.broken, protection=session.protection,
    )  # fmt: skip
