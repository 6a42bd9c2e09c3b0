"""Options that take several words: ``--k 2 4 8`` beside ``--k 2 --k 4`` and ``--k 2,4,8``."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class ManyWords(TyperCommand):
    """A command whose repeatable options take all words up to the next flag.

    Arguments of the command itself therefore stand before them.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeats the flag before each of its words."""
        many = {o for p in self.params if getattr(p, "multiple", False) for o in p.opts}
        return super().parse_args(ctx, spread(args, many))


def spread(words: list[str], many: set[str]) -> list[str]:
    """Returns the words with a flag of ``many`` repeated before each word that follows it.

    Example:
        >>> spread(["cora", "--k", "2", "4", "--seeds", "3"], {"--k"})
        ['cora', '--k', '2', '--k', '4', '--seeds', '3']
    """
    found: list[str] = []
    flag: str | None = None
    first = False
    for word in words:
        if word.startswith("-"):
            flag, first = (word, True) if word in many else (None, False)
            found.append(word)
        elif flag is None or first:
            found.append(word)
            first = False
        else:
            found += [flag, word]
    return found
