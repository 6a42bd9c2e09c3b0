"""PyG's GraphSAGE example, plus the one line that makes it a MaxK model.

python examples/03_from_pyg.py --dataset path/to/amazon_photo.npz --hidden 256 --k 32 --seeds 3
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn.models import GraphSAGE

import maxk


def to_data(dataset: maxk.Dataset) -> Data:
    """A PyG Data, as its own data sets give it."""
    data = maxk.interop.to_pyg(dataset.graph)
    data.x, data.y = dataset.x.to_dense(), dataset.y
    for name in ("train_mask", "val_mask", "test_mask"):
        data[name] = getattr(dataset, name)
    return data


def train(model: torch.nn.Module, data: Data, epochs: int) -> tuple[float, float]:
    """Test accuracy at the best validation epoch, and the median of the milliseconds an epoch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    best_val, best_test, times = -1.0, 0.0, []
    for _ in range(epochs):
        start = time.perf_counter()
        model.train()
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - start))
        model.eval()
        with torch.no_grad():
            right = model(data.x, data.edge_index).argmax(dim=1) == data.y
        if (val := right[data.val_mask].float().mean().item()) > best_val:
            best_val, best_test = val, right[data.test_mask].float().mean().item()
    return best_test, statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="digits", help="a name or the path of a file")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()

    dataset = maxk.load(arguments.dataset, undirected=True)
    data = to_data(dataset)
    print(data)
    for kind in ("ReLU", "MaxK"):
        scores, times = [], []
        for seed in range(arguments.seeds):
            torch.manual_seed(seed)
            model = GraphSAGE(
                data.num_features, arguments.hidden, 3, dataset.num_classes,
                dropout=0.5, norm="layer_norm", norm_kwargs={"mode": "node"},
            )  # fmt: skip
            if kind == "MaxK":
                model = maxk.convert(model, k=arguments.k)  # the one line
            score, milliseconds = train(model, data, arguments.epochs)
            scores.append(score)
            times.append(milliseconds)
        shown = " ".join(f"{score:.3f}" for score in scores)
        print(f"{kind}: test accuracy {statistics.mean(scores):.3f} ({shown}), "
              f"{statistics.median(times):.1f} ms an epoch")  # fmt: skip


if __name__ == "__main__":
    main()
