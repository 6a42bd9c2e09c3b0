"""What a conversion did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Converted:
    """One convolution that runs on our kernels.

    Attributes:
        name: its path in the model.
        kind: its class.
        k: entries a row that reach it as CBSR, or None where its input is dense.
        source: where its input comes from, in words.
    """

    name: str
    kind: str
    k: int | None
    source: str


@dataclass(frozen=True)
class ConversionReport:
    """What :func:`~maxk.interop.convert.convert` made of a model; ``print`` shows it.

    Attributes:
        converted: the convolutions that run on our kernels.
        left: what stays as it was and why, one line each.
    """

    converted: tuple[Converted, ...]
    left: tuple[str, ...]

    def __str__(self) -> str:
        name = max((len(row.name) for row in self.converted), default=0)
        kind = max((len(row.kind) for row in self.converted), default=0)
        lines = ["converted:"]
        lines += [f"  {r.name:<{name}}  {r.kind:<{kind}}  {r.source}" for r in self.converted]
        if self.left:
            lines += ["left as it was:", *(f"  {line}" for line in self.left)]
        return "\n".join(lines)
