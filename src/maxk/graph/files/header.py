"""What the columns of a text file hold, by the names in its header."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from maxk.core.errors import DataError

#: What a column of an edge list holds; ``row`` numbers the lines and is not read.
Role = Literal["source", "target", "weight", "row"]

#: Names of columns, without case, blanks and punctuation. ``head`` and ``tail`` are left out: which
#: of them an edge starts from differs between fields; so are ``row`` and ``col`` of a matrix.
NAMES: dict[Role, frozenset[str]] = {
    "source": frozenset(
        ["source", "src", "from", "u", "s", "node1", "node1id", "id1", "sender", "startnode"]
        + [f"{end}{kind}" for end in ("source", "src", "from") for kind in ("id", "node", "nodeid")]
    ),
    "target": frozenset(
        ["target", "dst", "to", "v", "t", "node2", "node2id", "id2", "receiver", "endnode"]
        + ["dest", "destination"]
        + [f"{end}{kind}" for end in ("target", "dst", "to") for kind in ("id", "node", "nodeid")]
    ),
    "weight": frozenset(["weight", "weights", "w", "edgeweight", "edgeweights"]),
    "row": frozenset(["", "id", "index", "idx", "edgeid", "eid", "rowid", "unnamed0"]),
}
#: Names of the column that numbers the nodes in a file of features, labels or a mask.
NODE_NAMES = frozenset(["", "id", "index", "idx", "node", "nodeid", "unnamed0"])

_ALLOWED = (
    "an edge list has a source (src, from, u, node1), a target (dst, to, v, node2) and perhaps a "
    "weight (w)"
)


def plain(name: str) -> str:
    """Return a column's name without case, blanks and punctuation: ``Node_1`` is ``node1``."""
    return re.sub(r"[\W_]+", "", name.lower())


def role(name: str) -> Role | None:
    """Return what a column of an edge list holds by its name, or None."""
    return next((role for role, names in NAMES.items() if plain(name) in names), None)


def edge_roles(names: Sequence[str], where: str) -> tuple[Role, ...]:
    """Return what each column of an edge list holds.

    Args:
        names: The names in the header, from left to right.
        where: File and line of the header, for messages.

    Raises:
        DataError: a name is unknown, or there is not exactly one source and one target.
    """
    roles: list[Role] = []
    for name in names:
        part = role(name)
        if part is None:
            raise DataError(
                f"{where}: the header names a column {name!r}, but {_ALLOWED}; delete or rename "
                "the column"
            )
        if part != "row" and part in roles:
            first = names[roles.index(part)]
            raise DataError(
                f"{where}: the header names two {part} columns, {first!r} and {name!r}; "
                "delete or rename one"
            )
        roles.append(part)
    for needed in ("source", "target"):
        if needed not in roles:
            named = ", ".join(map(repr, names))
            raise DataError(f"{where}: the header ({named}) names no {needed} column; {_ALLOWED}")
    return tuple(roles)


def is_edge_header(names: Sequence[str]) -> bool:
    """Whether words of a comment, such as ``FromNodeId ToNodeId``, name the columns of edges."""
    roles = [role(name) for name in names]
    return roles.count("source") == 1 and roles.count("target") == 1


def is_header(fields: Sequence[str]) -> bool:
    """Whether the fields of a first line are names: none is a number, or pandas numbered them.

    pandas writes ``,0,1`` above a table without names: a blank above the row numbers, then the
    numbers of the columns.
    """
    if not any(map(is_number, fields)):
        return True
    return fields[0] == "" and list(fields[1:]) == [str(i) for i in range(len(fields) - 1)]


def is_number(field: str) -> bool:
    """Whether a field is a number in Python's words, ``nan`` and ``inf`` included."""
    try:
        float(field)
    except ValueError:
        return False
    return True
