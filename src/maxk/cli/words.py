"""What flags may hold: several words (``--k 2 4 8``, ``--k 2 --k 4``, ``--k 2,4,8``), or names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from typer.core import TyperCommand

from maxk.core.errors import ConfigError


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


def integers(words: Sequence[str] | None, name: str = "k") -> tuple[int, ...]:
    """Returns the integers of ``["8,16", "32"]``.

    Raises:
        ConfigError: A word is no positive integer.
    """
    parts = [part for word in words or () for part in word.replace(",", " ").split()]
    for part in parts:
        if not part.isdecimal() or int(part) < 1:
            raise ConfigError(f"--{name} must be positive integers, as 8,16,32, got {part!r}")
    return tuple(map(int, parts))


def one_of(name: str, values: Iterable[str], allowed: Iterable[str]) -> None:
    """Raises ConfigError where a value is not among the allowed ones."""
    names = list(allowed)
    for value in values:
        if value not in names:
            raise ConfigError(f"--{name} must be one of {', '.join(names)}, got {value!r}")
