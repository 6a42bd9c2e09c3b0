"""Two sets of rows -> what got better, what got worse, and what is not significantly different."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from maxk.bench.report.table import markdown
from maxk.core.errors import DataError
from maxk.measure.record import Row
from maxk.measure.words import digits

Outcome = Literal["better", "worse", "not distinguishable"]


@dataclass(frozen=True)
class Change:
    """One thing measured twice.

    Attributes:
        before: The older row.
        after: The newer one.
    """

    before: Row
    after: Row

    @property
    def factor(self) -> float:
        """How many times better the newer number is: above 1 is better."""
        if self.before.ratio is not None and self.after.ratio is not None:
            return self.after.ratio / self.before.ratio
        return self.before.ms / self.after.ms

    @property
    def outcome(self) -> Outcome:
        """Whether the spreads (20th to 80th percentile) are disjoint, and on which side."""
        old, new = _spread(self.before), _spread(self.after)
        if new[0] > old[1]:
            return "better"
        return "worse" if new[1] < old[0] else "not distinguishable"


def _spread(row: Row) -> tuple[float, float]:
    """The range of a number that is better when it is larger: a ratio, or calls a millisecond."""
    if row.ratio is not None:
        return (
            row.ratio if row.ratio_low is None else row.ratio_low,
            row.ratio if row.ratio_high is None else row.ratio_high,
        )
    return 1 / row.ms_high, 1 / row.ms_low


def compare_rows(before: Iterable[Row], after: Iterable[Row]) -> list[Change]:
    """Returns the things that both sets measured, in the order of the second.

    Ratios to a contender were taken inside one process and can be compared between days and
    machines of one kind; bare milliseconds only on the same machine.

    Raises:
        DataError: The sets have nothing in common.
    """
    old = {row.key: row for row in before}
    changes = [Change(old[row.key], row) for row in after if row.key in old]
    if not changes:
        raise DataError("the two results have no measurement in common; compare the same suite")
    return changes


def changes_table(changes: Sequence[Change]) -> str:
    """Returns the changes as a Markdown table: worse ones first, then better, then the rest."""
    rank = {"worse": 0, "better": 1, "not distinguishable": 2}
    body = []
    for change in sorted(changes, key=lambda c: (rank[c.outcome], c.factor)):
        row = change.after
        k = "-" if row.k is None else str(row.k)
        what = [row.graph, row.op if row.model is None else f"{row.op} {row.model}"]
        what += [row.implementation, str(row.width), k, row.against or "-"]
        numbers = [_number(change.before), _number(row), f"{change.factor:.2f}", change.outcome]
        body.append(what + numbers)
    header = ["graph", "op", "implementation", "D", "k", "against", "before", "after", "factor", ""]
    return markdown(header, body)


def _number(row: Row) -> str:
    return f"{digits(row.ms)} ms" if row.ratio is None else f"{row.ratio:.2f} x"
