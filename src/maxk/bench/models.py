"""The models that the studies train: one table of their names."""

from __future__ import annotations

from typing import NamedTuple

from maxk.nn.models import GCN, GIN, GraphSAGE

Network = GraphSAGE | GCN | GIN


class Model(NamedTuple):
    """A model by its name on the command line.

    Attributes:
        network: Its class.
        reduce: How it aggregates.
    """

    network: type[Network]
    reduce: str

    @property
    def title(self) -> str:
        """Its name in tables and pictures."""
        return self.network.__name__


MODELS = {
    "sage": Model(GraphSAGE, "mean"),
    "gcn": Model(GCN, "gcn"),
    "gin": Model(GIN, "sum"),
}
