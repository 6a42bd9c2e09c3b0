"""A sweep from the request to its files: train what is missing, time it, compare, draw."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from maxk.bench.sweep import picture, score
from maxk.bench.sweep.jobs import Job, Request, jobs, settings
from maxk.bench.sweep.score import Score, Speed
from maxk.bench.sweep.speed import speeds
from maxk.bench.sweep.verdict import Verdict, sentences, verdicts
from maxk.bench.sweep.work import Lost, Runner, work
from maxk.core.errors import DataError
from maxk.measure import rows
from maxk.measure.environment import device_name
from maxk.train.setup import resolve_device

log = logging.getLogger(__name__)

#: Called with (runs done, runs requested, the run just done) after every run.
OnRun = Callable[[int, int, Score], object]


@dataclass(frozen=True)
class Study:
    """What a folder of a sweep says of some settings.

    Attributes:
        scores: The runs.
        speeds: Times of an epoch, of one device or of several; none where they were not measured.
        verdicts: Each setting compared with ReLU.
        lost: Runs that went with their worker, in this call.
    """

    scores: tuple[Score, ...]
    speeds: tuple[Speed, ...]
    verdicts: tuple[Verdict, ...]
    lost: int = 0

    def sentences(self) -> list[str]:
        """As :func:`maxk.bench.sweep.verdict.sentences`."""
        return sentences(self.verdicts, self.speeds)


def sweep(
    request: Request,
    out: Path,
    *,
    workers: int = 1,
    time_epochs: bool = True,
    rounds: int = 15,
    on_run: OnRun = lambda done, total, score: None,
) -> Study:
    """Trains every run that ``out`` does not hold yet, and times every setting without a time.

    A run is in ``out/sweep.jsonl`` as soon as it is finished; epochs are timed after the last run,
    alone on the device.

    Args:
        request: What to train.
        out: Folder of the rows.
        workers: Processes that train at a time.
        time_epochs: Time the epochs.
        rounds: Of that timing.
        on_run: Called after each run.

    Raises:
        MaxKError: a run is not possible, or the folder cannot be written.
    """
    wanted = jobs(request)
    path = out / score.SCORES
    known = {row.key: row for row in score.read_scores(path)}
    missing = [job for job in wanted if job.key not in known]
    done, lost = len(wanted) - len(missing), 0
    for result in work(missing, workers):
        if isinstance(result, Lost):
            lost += 1
            log.warning(
                "a worker ended with code %s at %s, seed %d; the same command trains it again",
                result.exitcode,
                result.job.setting,
                result.job.config.seed,
            )
            continue
        rows.append(path, [result])
        known[result.key] = result
        done += 1
        on_run(done, len(wanted), result)
    rows.write_csv(out / score.TABLE, Score, known.values())
    if time_epochs:
        _time(request, out / score.SPEEDS, rounds)
    scores = [known[job.key] for job in wanted if job.key in known]
    selected = {job.setting for job in wanted}
    device = device_name(resolve_device(request.device))
    timed = [
        s
        for s in score.read_speeds(out / score.SPEEDS)
        if s.device == device and score.bare(s) in selected
    ]
    return Study(tuple(scores), tuple(timed), tuple(verdicts(scores)), lost)


def _time(request: Request, path: Path, rounds: int) -> None:
    """Times each model on each data set of which a setting has no time on this device."""
    name = device_name(resolve_device(request.device))
    known = {score.bare(s) for s in score.read_speeds(path) if s.device == name}
    runner = Runner()
    for dataset in request.datasets:
        for model in request.models:
            field: list[Job] = settings(request, dataset, model)
            if all(job.setting in known for job in field):
                continue
            log.info("timing epochs: %s on %s", model, field[0].setting.dataset)
            _, data = runner.dataset(field[0].config)
            rows.append(path, speeds(field, data, rounds=rounds))


def open_study(paths: Sequence[Path]) -> Study:
    """Returns what the folders or files of sweeps hold together; nothing is trained.

    Raises:
        DataError: there is no run in them.
    """
    scores: dict[tuple[object, ...], Score] = {}
    timed: dict[object, Speed] = {}
    for path in paths:
        file = path / score.SCORES if path.is_dir() else path
        scores.update({row.key: row for row in score.read_scores(file)})
        for s in score.read_speeds(file.parent / score.SPEEDS):
            timed[score.bare(s), s.device] = s
    if not scores:
        names = ", ".join(map(str, paths))
        raise DataError(f"{names}: no {score.SCORES} with a run there; make one with maxk sweep")
    found = tuple(scores.values())
    return Study(found, tuple(timed.values()), tuple(verdicts(found)))


def draw_study(study: Study, out: Path) -> list[Path]:
    """Draws ``out/<dataset>.png`` for every data set, and returns the pictures.

    Raises:
        MaxKError: matplotlib is missing.
    """
    return [
        picture.draw_dataset(part.scores, part.verdicts, part.speeds, out / f"{name}.png")
        for name, part in by_dataset(study)
    ]


def by_dataset(study: Study) -> list[tuple[str, Study]]:
    """Returns what can be drawn of each data set: under plain recipes, where there are any."""
    found = []
    for name in dict.fromkeys(v.setting.dataset for v in study.verdicts):
        selected = [v for v in study.verdicts if v.setting.dataset == name]
        plain = [v for v in selected if v.setting.place == name] or selected
        fields = {v.setting.field for v in plain}
        scores = [row for row in study.scores if row.field in fields]
        speeds = [row for row in study.speeds if row.field in fields]
        found.append((name, Study(tuple(scores), tuple(speeds), tuple(plain))))
    return found
