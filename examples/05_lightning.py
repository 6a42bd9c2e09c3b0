"""A plain LightningModule around a MaxK model: nothing of maxk knows of Lightning.

1. full-batch training: an epoch is one batch, the whole graph;
2. the model is an ordinary module, the graph an ordinary argument;
3. Lightning keeps the best checkpoint, and its logger gets the scores.

Needs `pip install lightning`.

    python examples/05_lightning.py [NAME|PATH]
"""

import sys
import tempfile

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.functional import cross_entropy

import maxk


class NodeClassifier(lightning.LightningModule):
    def __init__(self, dataset, hidden=64, k=16, layers=2, lr=0.01):
        super().__init__()
        self.save_hyperparameters(ignore="dataset")
        self.model = maxk.nn.GraphSAGE(
            dataset.num_features, hidden, layers, dataset.num_classes, k=k, dropout=0.5
        )

    def forward(self, dataset):
        return self.model(dataset.x, dataset.graph)

    def training_step(self, dataset, index):
        mask = dataset.train_mask
        loss = cross_entropy(self(dataset)[mask], dataset.y[mask])
        self.log("loss", loss, batch_size=1)
        return loss

    def validation_step(self, dataset, index):
        self.score(dataset, "val", dataset.val_mask)

    def test_step(self, dataset, index):
        self.score(dataset, "test", dataset.test_mask)

    def score(self, dataset, name, mask):
        hits = self(dataset)[mask].argmax(dim=1) == dataset.y[mask]
        self.log(name, hits.float().mean(), batch_size=1, prog_bar=True)

    def transfer_batch_to_device(self, batch, device, index):
        return batch.to(device)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def main(name="digits"):
    lightning.seed_everything(0)
    dataset = maxk.load(name)
    whole = torch.utils.data.DataLoader([dataset], batch_size=None)
    with tempfile.TemporaryDirectory() as folder:
        best = ModelCheckpoint(folder, monitor="val", mode="max")
        trainer = lightning.Trainer(
            max_epochs=40, callbacks=[best], logger=False, default_root_dir=folder,
            log_every_n_steps=1, enable_progress_bar=False,
        )  # fmt: skip
        module = NodeClassifier(dataset)
        trainer.fit(module, whole, whole)
        (scores,) = trainer.test(module, whole, ckpt_path="best", verbose=False)
    print(f"test accuracy {scores['test']:.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
