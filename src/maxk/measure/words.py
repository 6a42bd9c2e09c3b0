"""How measured numbers are written."""

from __future__ import annotations

from maxk.measure.record import Row


def milliseconds(row: Row) -> str:
    """Returns a median with its spread, three digits each."""
    return f"{digits(row.ms)} ({digits(row.ms_low)} to {digits(row.ms_high)})"


def digits(value: float) -> str:
    """Returns three significant digits without an exponent.

    Example:
        >>> digits(0.12345), digits(12.345), digits(1234.5)
        ('0.123', '12.3', '1234')
    """
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def ratio_words(row: Row | None) -> str:
    """Returns a ratio as a table shows it: bold where ours is slower, ``~`` inside the spread."""
    if row is None or row.ratio is None:
        return "-"
    text = f"{row.ratio:.2f}" if row.ratio < 10 else f"{row.ratio:.1f}"
    low, high = row.ratio_low, row.ratio_high
    if low is not None and high is not None and low <= 1 <= high:
        return f"~{text}"
    return f"**{text}**" if row.ratio < 1 else text
