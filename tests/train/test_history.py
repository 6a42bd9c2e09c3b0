from __future__ import annotations

from maxk.ops.dispatch import Recorder
from maxk.train.loop import median, shares


def test_a_norm_that_is_one_operation_with_maxk_is_part_of_select() -> None:
    record = Recorder({"maxk": 1.0, "norm_maxk": 2.0, "spgemm": 4.0, "sspmm": 8.0})
    assert shares(record) == (3.0, 12.0)
    assert shares(None) == (None, None)


def test_the_median_is_of_what_is_known() -> None:
    assert median([3.0, None, 1.0, 2.0]) == 2.0
    assert median([None]) is None
