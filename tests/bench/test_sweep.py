from __future__ import annotations

import csv
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from maxk.bench.sweep import picture, run, score, speed, verdict, work
from maxk.bench.sweep import tables as accuracy
from maxk.bench.sweep.jobs import Request, jobs, parse_overrides, settings
from maxk.bench.sweep.score import Score, Setting, Speed
from maxk.bench.timing import Timed
from maxk.cli.main import main
from maxk.cli.words import spread
from maxk.core.errors import ConfigError, DataError, MaxKError, TrainingError
from maxk.data.load import load
from maxk.measure import rows as store
from maxk.measure.timer import Timing
from maxk.train.config import TrainConfig
from maxk.train.loop import Trainer

RECIPE = 'dataset = "digits"\nmodel = "sage"\nhidden = 16\nlayers = 1\nepochs = 3\nlr = 0.01\n'


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "digits-sage.toml").write_text(RECIPE)
    return folder


@pytest.fixture
def request_(recipes: Path) -> Request:
    return Request(("digits",), (4, 64), ("sage",), seeds=2, recipes=recipes, device="cpu")


def test_jobs_are_relu_and_every_k_up_to_the_width(request_: Request) -> None:
    found = jobs(request_)
    told = [(j.setting.nonlinearity, j.setting.k, j.setting.groups, j.config.seed) for j in found]
    assert told == [("relu", None, None, 0), ("relu", None, None, 1),
                    ("maxk", 4, 1, 0), ("maxk", 4, 1, 1)]  # fmt: skip
    assert {(j.config.hidden, j.config.lr, j.config.epochs) for j in found} == {(16, 0.01, 3)}
    assert {j.setting.recipe for j in found} == {"digits-sage.toml"}
    # A data set without a recipe runs with the defaults.
    (first, *_) = settings(replace(request_, models=("gcn",)), "digits", "gcn")
    assert (first.setting.recipe, first.config.hidden) == ("", TrainConfig().hidden)


def test_groups_divide_k_and_width(request_: Request) -> None:
    wide = replace(request_, overrides={"hidden": 256}, nonlinearities=("maxk-grouped",))
    found = settings(replace(wide, ks=(2, 32, 96, 192)), "digits", "sage")
    assert [(j.config.k, j.config.groups) for j in found[1:]] == [
        (2, 2), (32, 32), (96, 32), (192, 32),
    ]  # fmt: skip


def test_another_recipe_is_another_setting(request_: Request, recipes: Path) -> None:
    def digest() -> str:
        return jobs(request_)[0].setting.settings

    before = digest()
    (recipes / "digits-sage.toml").write_text("# a remark\n" + RECIPE + "seeds = 7\nk = 3\n")
    assert digest() == before
    (recipes / "digits-sage.toml").write_text(RECIPE.replace("0.01", "0.02"))
    assert digest() != before


def test_a_wrong_value_of_a_recipe_names_its_file(request_: Request, recipes: Path) -> None:
    (recipes / "digits-sage.toml").write_text("dropout = 1.5\n")
    with pytest.raises(ConfigError, match=r"digits-sage\.toml: --dropout must .* got 1\.5"):
        jobs(request_)


def test_settings_that_win_over_the_recipe(request_: Request) -> None:
    words = ["layers=2", "self-loops=true"]
    (first, *_) = jobs(replace(request_, overrides=parse_overrides(words)))
    assert (first.config.layers, first.config.self_loops, first.config.lr) == (2, True, 0.01)
    assert first.setting.recipe == "digits-sage.toml layers=2 self-loops=true"
    assert first.setting.settings != jobs(request_)[0].setting.settings


def test_no_k_fits(request_: Request) -> None:
    with pytest.raises(ConfigError, match="--k must hold a number up to the hidden width 16"):
        jobs(replace(request_, ks=(17, 64)))


def test_a_sweep_is_what_the_trainer_gives_and_goes_on_where_it_stopped(
    request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    study = run.sweep(
        request_, tmp_path / "out", rounds=3,
        on_run=lambda done, total, row: seen.append((done, total)),
    )  # fmt: skip
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    for row in study.scores:
        config = TrainConfig.from_toml(
            request_.recipes / "digits-sage.toml",
            nonlinearity=row.nonlinearity, k=row.k or 1, seed=row.seed, device="cpu",
        )  # fmt: skip
        summary = Trainer(config, load("digits", seed=row.seed)).fit()
        for name in ("val", "test", "test_last", "best_epoch", "epochs", "metric", "hidden"):
            assert getattr(row, name) == summary[name], name
    assert [row.split for row in study.scores] == [0, 1, 0, 1]
    assert [row.kept for row in study.scores if row.k] == [0.25, 0.25]
    assert {(s.nonlinearity, s.k) for s in study.speeds} == {("relu", None), ("maxk", 4)}
    assert all(s.ms > 0 and s.rounds == 3 and s.ceiling > 0 for s in study.speeds)
    with (tmp_path / "out" / score.TABLE).open() as file:
        table = list(csv.DictReader(file))
    assert [float(line["test"]) for line in table] == [row.test for row in study.scores]

    # One more seed: the runs that are there are not trained again, nor timed.
    monkeypatch.setattr(run, "speeds", lambda *a, **k: pytest.fail("timed again"))
    seen.clear()
    more = run.sweep(
        replace(request_, seeds=3), tmp_path / "out",
        on_run=lambda done, total, row: seen.append((row.seed, done)),
    )  # fmt: skip
    assert seen == [(2, 5), (2, 6)]
    assert len(more.scores) == 6
    assert run.open_study([tmp_path / "out"]).verdicts == more.verdicts


def test_the_ceiling_is_an_epoch_without_aggregation(
    request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = settings(request_, "digits", "sage")
    split = dict(select=0.5, forward=3.0, backward=3.0, dense=1.0, optimiser=0.5)

    def time_steps(
        steps: dict[object, float], device: object, *, parts: list[object], **_: object
    ) -> dict[object, Timed]:
        return {
            name: Timed(Timing((milliseconds,)), split if name in parts else None)
            for name, milliseconds in steps.items()
        }

    monkeypatch.setattr(
        speed, "_step", lambda config, data: 8.0 if config.nonlinearity == "relu" else 4.0
    )
    monkeypatch.setattr(speed, "time_steps", time_steps)
    relu, maxk = speed.speeds(field, load("digits"))
    assert (relu.ms, relu.ratio, relu.ceiling) == (8, 1, 4)
    assert (maxk.ms, maxk.ratio, maxk.ceiling) == (4, 2, 4)
    with pytest.raises(TrainingError, match="no setting is ReLU's"):
        speed.speeds(field[1:], load("digits"))


@pytest.mark.slow
def test_a_killed_worker_takes_one_run_with_it(
    request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = jobs(request_)
    # The second run never ends by itself, and the last names a split that is not there.
    long = replace(quick[1], config=replace(quick[1].config, epochs=10**6))
    last = replace(quick[3], config=replace(quick[3].config, split=5))
    crew: list[work._Worker] = []
    make = work._Worker

    def remembered(workers: int) -> work._Worker:
        crew.append(make(workers))
        return crew[-1]

    monkeypatch.setattr(work, "_Worker", remembered)
    results: list[object] = []
    with pytest.raises(DataError, match="split=5"):
        for result in work.work([quick[0], long, quick[2], last], 2):
            results.append(result)
            stuck = [worker for worker in crew if worker.job is long]
            if stuck and stuck[0]._process.is_alive():
                os.kill(stuck[0]._process.pid or 0, signal.SIGKILL)
                stuck[0]._process.join()  # a slow end would let the last run be refused first
    lost = [result for result in results if isinstance(result, work.Lost)]
    assert [(r.job, r.exitcode) for r in lost] == [(long, -signal.SIGKILL)]
    kept = [r for r in results if isinstance(r, Score)]
    assert {r.key for r in kept} <= {quick[0].key, quick[2].key}
    assert quick[0].key in {r.key for r in kept}
    assert not any(worker._process.is_alive() for worker in crew)


def test_a_run_that_is_not_possible_ends_the_sweep(request_: Request, tmp_path: Path) -> None:
    with pytest.raises(MaxKError, match="split=5"):
        run.sweep(replace(request_, overrides={"split": 5}), tmp_path)


def test_a_line_that_was_cut_short_is_trained_again(tmp_path: Path) -> None:
    path = tmp_path / score.SCORES
    first, second = made("relu", None, 0, 0.5), made("relu", None, 1, 0.6)
    store.append(path, [first, second])
    text = path.read_text()
    path.write_text(text[:-10])
    assert score.read_scores(path) == [first]
    store.append(path, [second])
    assert path.read_text() == text
    path.write_text("{}\n" + text)
    with pytest.raises(DataError, match=r"sweep.jsonl:1: the row lacks dataset, groups"):
        score.read_scores(path)
    assert score.read_scores(tmp_path / "none.jsonl") == []


def made(nonlinearity: str, k: int | None, seed: int, test: float | None, **more: object) -> Score:
    values = dict(dataset="digits", model="sage", recipe="", settings="", hidden=64)
    groups = 1 if nonlinearity == "maxk" else None
    return Score(
        **{**values, **more}, nonlinearity=nonlinearity, k=k, groups=groups, seed=seed, test=test
    )  # type: ignore[arg-type]


def study() -> list[Score]:
    """ReLU at 80 %; k = 2 far below, 4 equal, 8 above, 16 below by little but always."""
    relu = [0.79, 0.80, 0.81, 0.80, 0.79]
    by_k = {
        2: [-0.10, -0.12, -0.11, -0.09, -0.10],
        4: [0.01, -0.01, 0.005, -0.008, 0.002],
        8: [0.02, 0.021, 0.022, 0.02, 0.021],
        16: [-0.01, -0.011, -0.01, -0.012, -0.01],
    }
    rows = [made("relu", None, seed, value) for seed, value in enumerate(relu)]
    for k, differences in by_k.items():
        for seed, difference in enumerate(differences):
            rows.append(made("maxk", k, seed, relu[seed] + difference))
    return rows


def timed(k: int | None, ratio: float) -> Speed:
    names = dict(dataset="digits", model="sage", recipe="", settings="")
    kind = "relu" if k is None else "maxk"
    return Speed(
        **names, nonlinearity=kind, k=k, groups=None if k is None else 1, ms=1 / ratio,
        ratio=ratio, ratio_low=0.9 * ratio, ratio_high=1.1 * ratio, ceiling=4.0,
    )  # fmt: skip


def test_speeds_of_two_devices_stand_apart(tmp_path: Path) -> None:
    cpu = [timed(k, ratio) for k, ratio in ((None, 1.0), (2, 3.0), (4, 2.5))]
    gpu = [replace(s, device="H200", ratio=2 * s.ratio) for s in cpu]
    store.append(tmp_path / score.SPEEDS, [*cpu, *gpu])
    store.append(tmp_path / score.SCORES, study())
    both = run.open_study([tmp_path])
    assert list(both.speeds) == [*cpu, *gpu]
    # Of two that timed as much, the GPU; else the one that timed more.
    assert score.on_one_device([*cpu, *gpu]) == gpu
    assert score.on_one_device([*cpu, *gpu[:2]]) == cpu
    assert score.on_one_device([]) == []
    (text,) = both.sentences()
    assert "its epoch is 5.00 times as fast" in text
    tables = accuracy.study_tables(both)
    assert "as ReLU's (CPU)\n" in tables
    assert "as ReLU's (H200)\n" in tables
    assert "epoch, times as fast (H200)" in tables
    page = picture.dataset_figure(both.scores, both.verdicts, both.speeds)
    assert page.axes[1].get_ylabel().endswith("(H200)")


def test_the_overview_counts_over_graphs(tmp_path: Path) -> None:
    store.append(tmp_path / score.SCORES, study())
    assert "over all graphs" not in accuracy.study_tables(run.open_study([tmp_path]))
    # The same on a second graph, but k = 16 for the better.
    other = [replace(row, dataset="other") for row in study()]
    other = [replace(row, test=row.test + 0.03) if row.k == 16 else row for row in other]
    store.append(tmp_path / score.SCORES, other)
    lines = accuracy.study_tables(run.open_study([tmp_path])).splitlines()
    first = lines.index("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    assert lines[first + 1 : first + 5] == [
        "| 2 | 2 | 2 | 0 | -10.40 | 10.40 (digits, GraphSAGE) | 0 |",
        "| 4 | 2 | 0 | 0 | -0.02 | - | 0 |",
        "| 8 | 2 | 0 | 2 | +2.08 | - | 2 |",
        "| 16 | 2 | 1 | 1 | +0.44 | 1.06 (digits, GraphSAGE) | 1 |",
    ]


def test_what_the_paired_test_says() -> None:
    found = {v.setting.k: v for v in verdict.verdicts(study())}
    words = {k: found[k].word for k in (2, 4, 8, 16)}
    assert words == {2: "worse", 4: "not distinguishable", 8: "better", 16: "worse"}
    four = found[4]
    assert four.low < four.difference < four.high  # type: ignore[operator]
    assert (four.runs, four.relu) == (5, pytest.approx(0.798))
    # Equal in every seed, and better by the same in every seed.
    assert verdict.paired([0.5, 0.6], [0.5, 0.6]) == (0, 0, 1)
    assert verdict.paired([2.0, 3.0], [1.0, 2.0]) == (1, 1, 0)


def test_the_sentence() -> None:
    found = verdict.verdicts(study())
    (text,) = verdict.sentences(found, [timed(4, 2.5)])
    assert text.startswith(
        "digits, sage, maxk: k = 4 is the smallest k not distinguishable from ReLU "
        "(79.78 ± 1.04 against 79.80 ± 0.84, difference -0.02 in ["
    )
    assert "paired t-test over 5 seeds, two-sided, level 5%" in text
    assert text.endswith(
        "; its epoch is 2.50 times as fast; yet worse at k = 16; "
        "k = 8 is the smallest that rules out a loss of 1 point (81.88 ± 0.89)"
    )
    (text,) = verdict.sentences(verdict.verdicts([r for r in study() if r.k in (None, 8)]), [])
    assert text.endswith("; a loss of 1 point is ruled out")
    only = [r for r in study() if r.k in (None, 4)]
    (text,) = verdict.sentences(verdict.verdicts(only), [])
    assert text.endswith("; no k rules out a loss of 1 point")
    only = [row for row in study() if row.k in (None, 2, 16)]
    (text,) = verdict.sentences(verdict.verdicts(only), [])
    assert "every k is worse than ReLU" in text
    assert text.endswith("the best, k = 16, by 1.06 points")
    thin = [row for row in study() if row.k != 4 or row.seed < 2]
    (text,) = verdict.sentences(verdict.verdicts(thin), [])
    assert "k = 8 is the smallest k that is not worse than ReLU" in text
    few = [row for row in study() if row.seed < 2]
    (text,) = verdict.sentences(verdict.verdicts(few), [])
    assert text == (
        "digits, sage, maxk: too few seeds (2) to tell a difference; train with --seeds 5 or more"
    )


def test_a_setting_that_diverged_is_worse_and_other_recipes_are_not_compared() -> None:
    rows = [*study(), made("maxk", 4, 5, None, diverged=3), made("relu", None, 5, 0.8)]
    found = {v.setting.k: v for v in verdict.verdicts(rows)}
    assert (found[4].word, found[4].diverged, found[4].runs) == ("worse", 1, 5)
    foreign = made("maxk", 4, 0, 0.9, settings="other")
    assert [v.setting.settings for v in verdict.verdicts([*study(), foreign])].count("other") == 0


def test_what_was_set_beside_a_recipe_is_told_and_not_drawn() -> None:
    changed = [replace(row, recipe="x.toml layers=2", settings="1") for row in study()]
    found = run.Study((*study(), *changed), (), tuple(verdict.verdicts([*study(), *changed])))
    plain, other = verdict.sentences(found.verdicts, [])
    assert plain.startswith("digits, sage, maxk: k = 4")
    assert other.startswith("digits (layers=2), sage, maxk: k = 4")
    ((name, part),) = run.by_dataset(found)
    assert (name, {v.setting.settings for v in part.verdicts}) == ("digits", {""})
    alone = run.Study(tuple(changed), (), tuple(verdict.verdicts(changed)))
    assert len(run.by_dataset(alone)[0][1].verdicts) == 5


def test_the_picture_shows_what_was_measured(tmp_path: Path) -> None:
    rows = study()
    found = verdict.verdicts(rows)
    page = picture.dataset_figure(rows, found, [timed(None, 1.0), timed(2, 3.0), timed(4, 2.5)])
    above, below = page.axes
    assert above.get_xscale() == "log"
    assert above.get_ylabel() == "test accuracy (%)"
    hollow = [line for line in above.lines if line.get_markerfacecolor() == "white"]
    assert [list(line.get_xdata()) for line in hollow] == [[2], [16], []]
    thin = [row for row in rows if row.k in (None, 4) and row.seed < 2]
    (panel,) = picture.dataset_figure(thin, verdict.verdicts(thin), []).axes
    assert [list(line.get_xdata()) for line in panel.lines if line.get_marker() == "x"] == [[4], []]
    dotted = [line for line in below.lines if line.get_linestyle() == ":"]
    assert [list(line.get_ydata()) for line in dotted] == [[4.0, 4.0]]
    (drawn,) = [line for line in below.lines if line.get_marker() == "o"]
    assert list(drawn.get_ydata()) == [3.0, 2.5]
    path = picture.draw_dataset(rows, found, [], tmp_path / "inner" / "digits.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(DataError, match="no run to draw"):
        picture.dataset_figure(rows, [], [])


def test_the_command(recipes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = f"sweep digits --k 2 4 --models sage --seeds 3 --device cpu --no-speed --out {out}"
    assert main([*words.split(), "--recipes", str(recipes)]) == 0
    shown = capsys.readouterr()
    assert "9 of 9 runs" in shown.err
    assert shown.out.startswith("digits, sage, maxk: ")
    assert shown.out.splitlines()[-1] == f"wrote {out / 'digits.png'}"
    assert sorted(p.name for p in out.iterdir()) == ["digits.png", score.TABLE, score.SCORES]


@pytest.mark.parametrize(("words", "message"), [
    ("sweep digits --k 2 x", "--k must be positive integers, as 8,16,32, got 'x'"),
    ("sweep digits --models sage gat", "--models must be one of sage, gcn, gin, got 'gat'"),
    ("sweep digits --nonlinearity gelu", "--nonlinearity must be one of maxk, maxk-grouped"),
    ("sweep nowhere --device cpu", "no data set is called 'nowhere'"),
    ("sweep", "Missing argument"),
    ("sweep digits --set layers", "--set must be a setting and its value, as layers=4"),
    ("sweep digits --set layer=4", "--set has an unknown key 'layer'; did you mean 'layers'?"),
    ("sweep digits --set layers=2.5", "--layers must be a whole number, got '2.5'"),
    ("sweep digits --set k=4", "--set k cannot be"),
])  # fmt: skip
def test_wrong_words(words: str, message: str, capsys: pytest.CaptureFixture[str],
                     tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_words_up_to_the_next_flag() -> None:
    many = {"--k", "--models"}
    words = ["a", "--k", "2", "4,8", "--seeds", "3", "--models", "gin", "--speed", "c"]
    want = ["a", "--k", "2", "--k", "4,8", "--seeds", "3", "--models", "gin", "--speed", "c"]
    assert spread(words, many) == want


def test_setting_is_what_rows_share() -> None:
    row = made("maxk", 4, 0, 0.5)
    assert score.bare(row) == score.bare(timed(4, 1.0)) == Setting(
        "digits", "sage", "maxk", 4, 1, "", ""
    )  # fmt: skip
