from __future__ import annotations

import hashlib
import re
import threading
from dataclasses import replace

import pytest
import torch

from maxk.core.errors import ConfigError, DataError
from maxk.data.dataset import Dataset
from maxk.data.load import load
from maxk.nn.nonlinearities import Activation
from maxk.train import metrics
from maxk.train.config import TrainConfig
from maxk.train.deferred import DeferredTrainer, Outcome
from maxk.train.loop import Trainer
from maxk.train.setup import k_at

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
# On a GPU two runs of 24 epochs give the same scores only where every sum has its order.
SMALL = TrainConfig(
    dataset="digits", hidden=16, layers=2, k=4, epochs=12, residual=True, deterministic=True
)


class Recorded(DeferredTrainer):
    """Keeps the losses and scores of its epochs for the report of a difference."""

    lines: tuple[list[float], ...] = ()

    def _outcome(self, lines: list[list[float]], kept: float, seconds: float) -> Outcome:
        self.lines = tuple(lines)
        return super()._outcome(lines, kept, seconds)


def hashes(tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def beginning(trainer: Trainer) -> str:
    return (
        f"initial weights {hashes(trainer.model.state_dict())}, random state "
        f"{hashes(trainer._random)}, {torch.get_num_threads()} threads of torch"
    )


def compared(config: TrainConfig, data: Dataset) -> Outcome:
    """Trains both ways and compares; a difference is reported with all that could explain it."""
    watched, deferred = Trainer(config, data), Recorded(config, data)
    began = beginning(watched), beginning(deferred)
    summary, outcome = watched.fit(), deferred.run()
    names = ("best_epoch", "val", "test", "test_last", "epochs")
    differing = [n for n in names if getattr(outcome, n) != summary[n]]
    if differing or began[0] != began[1]:
        rows = [
            f"epoch {e.epoch}: watched loss {e.loss!r} val {e.val!r} test {e.test!r}; "
            f"deferred loss {line[0]!r} val {line[1]!r} test {line[2]!r}"
            for e, line in zip(watched.history, deferred.lines, strict=False)
        ]
        threads = ", ".join(f"{t.name} (daemon {t.daemon})" for t in threading.enumerate())
        ends = hashes(watched.model.state_dict()), hashes(deferred.model.state_dict())
        pytest.fail(
            "\n".join(
                [
                    f"the runs differ in {', '.join(differing) or 'their beginning'}",
                    f"threads alive: {threads}",
                    f"watched:  {began[0]}, last weights {ends[0]}, {summary}",
                    f"deferred: {began[1]}, last weights {ends[1]}, {outcome}",
                    *rows,
                ]
            ),
            pytrace=False,
        )
    return outcome


def test_a_difference_is_reported_with_what_could_explain_it(monkeypatch):
    predict = DeferredTrainer._outcome

    def wrong(self, lines, kept, seconds):
        return replace(predict(self, lines, kept, seconds), test=0.125)

    monkeypatch.setattr(DeferredTrainer, "_outcome", wrong)
    with pytest.raises(pytest.fail.Exception) as caught:
        compared(replace(SMALL, epochs=2), load("digits"))
    report = str(caught.value)
    assert report.startswith("the runs differ in test\nthreads alive: MainThread")
    first, second = re.findall(r"initial weights (\w{16}), random state (\w{16})", report)
    assert first == second
    for epoch in (1, 2):
        found = re.search(rf"epoch {epoch}: watched loss (\S+) .*deferred loss (\S+) ", report)
        assert found is not None
        assert found[1] == found[2]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", ["sage", "gcn", "gin"])
@pytest.mark.parametrize("nonlinearity", ["maxk", "relu", "fatrelu"])
def test_the_result_is_that_of_a_watched_run(device, model, nonlinearity):
    config = replace(SMALL, device=device, model=model, nonlinearity=nonlinearity)
    data = load("digits")
    outcome = compared(config, data)
    assert outcome.diverged is None
    if nonlinearity == "maxk":
        assert outcome.kept == 0.25
    else:
        assert 0 < outcome.kept < 0.9


@pytest.mark.parametrize("device", DEVICES)
def test_sparse_features_and_patience(device, tmp_path):
    data = load("digits")
    sparse = replace(data, x=data.x.to_sparse_csr())
    config = replace(SMALL, device=device, epochs=60, patience=2, lr=0.05)
    watched = Trainer(config, sparse).fit()
    outcome = DeferredTrainer(config, sparse).run()
    assert outcome.epochs == watched["epochs"] < 60
    assert (outcome.best_epoch, outcome.test) == (watched["best_epoch"], watched["test"])


@pytest.mark.parametrize("device", DEVICES)
def test_k_falls_by_halves_and_the_best_epoch_comes_after(device):
    config = replace(SMALL, device=device, epochs=24, anneal=10, k=2, lr=0.02)
    assert [k_at(config, epoch) for epoch in (1, 4, 5, 7, 8, 10, 11, 24)] == [
        16, 16, 8, 8, 4, 4, 2, 2,
    ]  # fmt: skip
    data = load("digits")
    trainer = Trainer(config, data)
    watched = trainer.fit()
    assert watched["best_epoch"] > 10
    assert {m.k for m in trainer.model.modules() if isinstance(m, Activation)} == {2}
    plain = Trainer(replace(config, anneal=0), data).fit()
    assert plain["test_last"] != watched["test_last"]
    outcome = DeferredTrainer(config, data).run()
    for name in ("best_epoch", "val", "test", "test_last", "epochs"):
        assert getattr(outcome, name) == watched[name], name
    assert outcome.kept == 2 / 16


def test_a_resumed_run_goes_on_with_the_k_of_its_epoch():
    config = replace(SMALL, epochs=12, anneal=8, k=2)
    data = load("digits")
    whole, half = Trainer(config, data), Trainer(config, data)
    whole.fit()
    for _ in range(5):
        half.train_epoch()
    again = Trainer(config, data)
    again.load_state(half.state())
    again.fit()
    assert [e.loss for e in again.history] == [e.loss for e in whole.history]


@pytest.mark.parametrize(("settings", "message"), [
    ({"anneal": 12}, "--anneal must be below --epochs 12"),
    ({"anneal": 5, "nonlinearity": "fatrelu"}, "--anneal is for --nonlinearity maxk"),
    ({"anneal": -1}, "--anneal must be at least 0"),
])  # fmt: skip
def test_what_cannot_be_annealed(settings, message):
    with pytest.raises(ConfigError, match=message):
        replace(SMALL, **settings)


def test_a_foreign_evaluator_is_asked():
    data = replace(load("digits"), evaluator=lambda logits, y: 0.5 + float(logits.shape[0]) / 1e4)
    watched = Trainer(SMALL, data).fit()
    outcome = DeferredTrainer(SMALL, data).run()
    assert (outcome.test, outcome.val) == (watched["test"], watched["val"])
    assert (outcome.best_epoch, outcome.kept, outcome.epochs) == (1, 0.25, 12)
    wild = DeferredTrainer(replace(SMALL, lr=1e30, norm="none"), data).run()
    assert wild.diverged is not None
    assert wild.test is None


def test_a_diverged_run_has_no_score():
    outcome = DeferredTrainer(replace(SMALL, lr=1e30, norm="none")).run()
    assert outcome.diverged is not None
    assert (outcome.val, outcome.test, outcome.best_epoch) == (None, None, None)


def test_an_undefined_score_is_named():
    data = load("digits")
    one = torch.zeros_like(data.y)
    flat = replace(data, y=one, num_classes=2, metric="roc_auc")
    with pytest.raises(DataError, match="a positive and a negative node"):
        DeferredTrainer(SMALL, flat).run()


@pytest.mark.parametrize("metric", metrics.METRICS)
@pytest.mark.parametrize("labels", ["single", "multi"])
def test_scores_on_the_device_are_the_scores(metric, labels):
    if (metric, labels) == ("accuracy", "multi"):
        return
    torch.manual_seed(0)
    logits = torch.randn(200, 2).round(decimals=1)  # with ties
    y = torch.randint(2, (200,)) if labels == "single" else (torch.rand(200, 2) < 0.3).float()
    got = metrics.score_on_device(metric, logits, y)
    assert got.dtype == torch.float64
    assert float(got) == pytest.approx(metrics.score(metric, logits, y), abs=1e-12)
    if (metric, labels) == ("roc_auc", "multi"):
        y[:, 1] = 0  # a label that is not defined counts for nothing
        want = metrics.score(metric, logits, y)
        assert float(metrics.score_on_device(metric, logits, y)) == pytest.approx(want, abs=1e-12)


def test_nothing_predicted_and_nothing_true_scores_nothing():
    assert metrics.score("micro_f1", -torch.ones(3, 2), torch.zeros(3, 2)) == 0
