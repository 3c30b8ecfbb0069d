"""An extension of griffe for the page of the API: public names that load on first use, and examples in docstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!\s*$).*\n?)*)", re.M)


class PublicNames(griffe.Extension):
    """What a package lists as imports under `if TYPE_CHECKING:` for its `lazy_names` is public: griffe does not run code.

    Examples (`>>> ...`) become blocks of code. Otherwise lists in their output would be read as links.
    """

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", obj.docstring.value)

    def on_package(self, *, pkg: Any, **kwargs: Any) -> None:
        """Called by griffe when the whole package is loaded."""
        for module in [pkg, *pkg.modules.values()]:
            if not module.is_alias and "lazy_names" in module.members:
                names = [name for name, member in module.members.items() if member.is_alias and name[0] != "_"]
                module.exports = [n for n in names if n not in ("lazy_names", "TYPE_CHECKING") and n not in pkg.modules]
