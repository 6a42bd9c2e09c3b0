"""The trainer behind `maxk train`, as a notebook uses it.

1. settings and data are objects: change them in the next cell;
2. training goes on where it stopped, and another logger is three methods;
3. the history is a list of records, predictions are a tensor.

    python examples/06_trainer_api.py [NAME|PATH]
"""

import sys
from collections import Counter

import maxk


class Milestones:
    """A logger: prints an epoch whenever validation has gained five points."""

    def __init__(self):
        self.seen = 0.0

    def log_hyperparams(self, params):
        print(f"training on {params['dataset']}, k = {params['k']} of {params['hidden']}")

    def log_metrics(self, metrics, step):
        value = next(value for name, value in metrics.items() if name.startswith("val_"))
        if value >= self.seen + 0.05:
            self.seen = value
            print(f"epoch {step:3d}  loss {metrics['loss']:.3f}  val {value:.1%}")

    def finalize(self, status):
        print(f"{status}: best seen {self.seen:.1%}")


def main(name="digits"):
    dataset = maxk.load(name)
    config = maxk.TrainConfig(dataset=name, hidden=64, k=16, layers=2, epochs=60, lr=0.01)

    trainer = maxk.Trainer(config, dataset, loggers=[Milestones()])
    trainer.train_epoch()  # one step, to look at
    print(trainer)
    summary = trainer.fit()  # the rest
    print(trainer)
    print(f"{summary['seconds_per_epoch'] * 1e3:.1f} ms an epoch")

    best = max(trainer.history, key=lambda epoch: epoch.val)
    print(f"epoch {best.epoch} of {len(trainer.history)} is the best: test {best.test:.1%}")

    # The model holds the last epoch's weights until it is given the best ones.
    predicted = trainer.restore_best().predict().argmax(dim=1)
    wrong = dataset.test_mask & (predicted.cpu() != dataset.y)
    pairs = zip(dataset.y[wrong].tolist(), predicted.cpu()[wrong].tolist(), strict=True)
    for (true, taken), count in Counter(pairs).most_common(3):
        print(f"class {true} taken for {taken}: {count} times")


if __name__ == "__main__":
    main(*sys.argv[1:])
