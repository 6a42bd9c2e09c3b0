"""Docstrings carry reStructuredText where Python's own tools expect it; the site reads Markdown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert

_DOCUMENTED = re.compile(r"^::: (\S+)", re.MULTILINE)
_MATH_BLOCK = re.compile(r"^\.\. math:: (.+(?:\n[ \t]+\S.*)*)", re.MULTILINE)
_MATH = re.compile(r":math:`([^`]+)`")
_ROLE = re.compile(r":(?:func|class|meth|attr|mod):`(~?)([\w.]+)`")
_LINK = re.compile(r"`([^`<]+?)\s*<(https?://[^>]+)>`_")
_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
_LITERAL = re.compile(r"::$", re.MULTILINE)
_SUP = re.compile(r"\\ ?:sup:`([^`]+)`")


class Markdown(griffe.Extension):
    """Turns the few reStructuredText constructs of this package's docstrings into Markdown."""

    def __init__(self) -> None:
        api = Path(__file__).parents[1] / "api.md"
        documented = _DOCUMENTED.findall(api.read_text(encoding="utf-8"))
        # Where two carry one name, the first on the page is meant.
        self.documented = {path.rsplit(".", 1)[-1]: path for path in reversed(documented)}

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Rewrites one object's docstring before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = self.convert(obj.docstring.value)

    def convert(self, text: str) -> str:
        """The Markdown of a docstring."""
        text = _EXAMPLE.sub("Examples:", text)  # the heading under which examples are set as code
        text = _LITERAL.sub(":", text)
        text = _MATH_BLOCK.sub(lambda m: convert(" ".join(m[1].split()), display="block"), text)
        text = _MATH.sub(lambda m: f"<span>{convert(m[1])}</span>", text)
        text = _LINK.sub(r"[\1](\2)", text)
        text = _SUP.sub(r"<sup>\1</sup>", text)
        return _ROLE.sub(self._reference, text)

    def _reference(self, match: re.Match[str]) -> str:
        tilde, path = match.groups()
        name = path.rsplit(".", 1)[-1]
        shown = name if tilde else path
        public = self.documented.get(name)
        return f"`{shown}`" if public is None else f"[`{shown}`][{public}]"
