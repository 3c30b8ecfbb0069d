"""An extension of griffe: examples in docstrings (`>>> ...`) become blocks of code on the page of the API."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!\s*$).*\n?)*)", re.M)


class FencedExamples(griffe.Extension):
    """Without it, lists in the output of an example would be read as links."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", obj.docstring.value)
