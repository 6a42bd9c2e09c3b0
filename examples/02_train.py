"""A training loop of your own, MaxK beside ReLU; only data and model are this package's.

python examples/02_train.py --dataset path/to/cora.npz --hidden 256 --k 32 --epochs 100
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F

import maxk


def accuracy(logits: torch.Tensor, data: maxk.Dataset, mask: torch.Tensor) -> float:
    return (logits[mask].argmax(dim=1) == data.y[mask]).float().mean().item()


def train(data: maxk.Dataset, arguments: argparse.Namespace, **kind: object) -> tuple[float, float]:
    """Test accuracy at the best validation epoch, and seconds an epoch."""
    torch.manual_seed(arguments.seed)
    model = maxk.nn.GraphSAGE(
        data.num_features, arguments.hidden, arguments.layers, data.num_classes, dropout=0.5, **kind
    ).to(data.graph.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    best_val, best_test, seconds = -1.0, 0.0, []
    for _ in range(arguments.epochs):
        start = time.perf_counter()
        model.train()
        optimizer.zero_grad()
        logits = model(data.x, data.graph)
        loss = F.cross_entropy(logits[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)

        model.eval()
        with torch.no_grad():
            logits = model(data.x, data.graph)
        val = accuracy(logits, data, data.val_mask)
        if val > best_val:
            best_val, best_test = val, accuracy(logits, data, data.test_mask)
    return best_test, sorted(seconds)[len(seconds) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="digits", help="a name or the path of a file")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()

    data = maxk.load(arguments.dataset, seed=arguments.seed).to(arguments.device)
    if data.multi_label:
        parser.error(f"{data.name} has several labels a node; use maxk train, which scores them")
    print(data)
    for note in data.notes:
        print(note)
    for kind in ({"nonlinearity": "relu"}, {"nonlinearity": "maxk", "k": arguments.k}):
        test, seconds = train(data, arguments, **kind)
        print(f"{kind['nonlinearity']}: test accuracy {test:.3f}, {1e3 * seconds:.1f} ms an epoch")


if __name__ == "__main__":
    main()
