"""A hook of mkdocs: links from docs/ to files beside it (examples, results of benchmarks, ARCHITECTURE.md).

The site does not have those files. With `repo_url` in mkdocs.yml such a link leads to the file in that repository; without one
it becomes the path of the file. A link to a file that is not there is left as it is, and the strict build fails at it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]\n]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^```.*?^```[^\n]*$)", re.M | re.S)


def on_page_markdown(markdown: str, /, page: Any, config: Any, files: Any) -> str:
    """Called by mkdocs for each page."""
    root = Path(config["docs_dir"]).parent
    folder = PurePosixPath("docs", page.file.src_uri).parent
    base = str(config["repo_url"] or "").rstrip("/")
    return relinked(markdown, folder, root, base)


def relinked(markdown: str, folder: PurePosixPath, root: Path, base: str) -> str:
    """The text of a page in `folder`, with links to files outside of docs/ replaced; blocks of code are left alone."""

    def one(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        path = os.path.normpath(folder / target)
        if "://" in target or path.startswith("docs/") or not (root / path).exists():
            return found[0]
        if base:
            return f"[{text}]({base}/blob/main/{path}{anchor})"
        return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"

    return "".join(part if i % 2 else LINK.sub(one, part) for i, part in enumerate(FENCE.split(markdown)))
