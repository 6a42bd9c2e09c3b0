from __future__ import annotations

import csv
import json
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from maxk.bench.report import sections, trained
from maxk.bench.report.html import html_page
from maxk.bench.sweep import score
from maxk.bench.sweep import tables as accuracy
from maxk.bench.sweep.score import Score, Speed
from maxk.cli.main import main
from maxk.core.errors import DataError
from maxk.measure import rows as store
from maxk.measure.record import Row, append_results

RELU = Score(
    "cora", "sage", "relu", None, None, "cora-sage.toml", "1", test=0.8, hidden=64, kept=0.4
)
OWN = Row(
    suite="quick", op="forward", implementation="auto", graph="ring", nodes=5, edges=10, width=8,
    dtype="float32", device="NVIDIA H200", ms=2.0, ms_low=1.5, ms_high=2.5, torch="2.13.0",
    commit="abc1234", date="2026-11-29", k=2,
)  # fmt: skip


def scores(shift: float = 0.0) -> list[Score]:
    rows = []
    for seed, noise in enumerate((0.001, -0.002, 0.003)):
        rows.append(replace(RELU, seed=seed, test=0.8 + noise))
        for k, far in ((2, -0.1), (8, 0.1)):
            test = 0.8 + far + shift + 2 * noise
            rows.append(replace(RELU, nonlinearity="maxk", k=k, groups=1, seed=seed, test=test))
    return rows


@pytest.fixture
def swept(tmp_path: Path) -> Path:
    folder = tmp_path / "accuracy"
    store.append(folder / score.SCORES, scores())
    relu = Speed(**asdict(score.bare(RELU)), ms=5.0, ceiling=3.5)
    fast = replace(relu, nonlinearity="maxk", k=8, groups=1, ms=2.0, ratio=2.5, ratio_low=2.4,
                   ratio_high=2.6)  # fmt: skip
    store.append(folder / score.SPEEDS, [relu, fast])
    return folder


def run_folder(folder: Path, tests: list[float], seconds: list[float]) -> Path:
    folder.mkdir()
    runs = [{"seed": seed, "test": test} for seed, test in enumerate(tests)]
    told = {"dataset": "cora", "model": "gcn", "nonlinearity": "maxk", "k": 4}
    summary = {**told, "seconds_per_epoch": seconds[0], "runs": runs}
    (folder / "summary.json").write_text(json.dumps(summary))
    for seed in range(len(tests)):
        (folder / f"seed-{seed}").mkdir()
        lines = "".join(json.dumps({"seconds": s}) + "\n" for s in seconds)
        (folder / f"seed-{seed}" / "epochs.jsonl").write_text(lines)
    return folder


class _Tags(HTMLParser):
    """Counts tags, and finds whatever a page would have to fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.fetched: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)
        if tag not in ("meta", "img"):
            self._open.append(tag)
        self.fetched += [v or "" for n, v in attrs if n in ("src", "href") and v]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def test_one_page_of_everything(swept: Path, tmp_path: Path) -> None:
    append_results([OWN, replace(OWN, against="torch.sparse", ratio=4.5)], tmp_path / "results")
    runs = [run_folder(tmp_path / name, [0.5, 0.6, 0.7], [0.1, 0.1]) for name in ("a", "b")]
    out, table = tmp_path / "page.html", tmp_path / "rows.csv"
    words = [
        str(tmp_path / "results"),
        str(swept),
        *map(str, runs),
        "--html",
        str(out),
        "--csv",
        str(table),
    ]
    assert main(["report", *words]) == 0
    text = out.read_text()
    tags = _Tags()
    tags.feed(text)
    tags.close()
    assert not tags._open
    assert tags.opened.count("h2") == 3
    assert tags.opened.count("img") == 2
    assert all(link.startswith("data:image/png;base64,") for link in tags.fetched)
    assert "<td><b>70.13 ± 0.50</b></td><td>90.13 ± 0.50 +</td>" in text
    assert "a -&gt; b, the score: not distinguishable" in text
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 + 9 + 2
    assert {row["section"].partition(":")[0] for row in rows} == {
        "Training runs", "Accuracy over k", "Times",
    }  # fmt: skip


def test_the_page_escapes_what_is_not_its_own() -> None:
    text = html_page("<t>", [sections.Section("s", "a & b\n\n- **x**\n- y", ())], [])
    assert "<h1>&lt;t&gt;</h1>" in text
    assert "<p>a &amp; b</p>" in text
    assert "<ul><li><b>x</b></li><li>y</li></ul>" in text


def test_the_tables_of_a_sweep(swept: Path) -> None:
    ((_, study),) = sections.studies([swept])
    text = accuracy.study_tables(study)
    assert "| cora | 64 | 3 | 40.0 % | 80.07 ± 0.25 | **70.13 ± 0.50** | 90.13 ± 0.50 + |" in text
    assert "| cora | 5.00 | 2.50 | 3.50 |" in text
    last = text.splitlines()[-1].split(" | ")
    assert last[:4] == ["| cora", "GraphSAGE", "maxk", "8"]
    assert last[4].startswith("+10.07 in [")
    assert last[6:] == ["2.50", "-", "8 |"]


def test_irregular_sparsity_is_told(swept: Path) -> None:
    thin = [replace(RELU, nonlinearity="fatrelu", k=8, seed=s, kept=0.1 + 0.01 * s) for s in (0, 1)]
    store.append(swept / score.SCORES, thin)
    ((_, study),) = sections.studies([swept])
    text = accuracy.study_tables(study)
    assert "| graph | k = 8 |\n| --- | ---: |\n| cora | 10.5 % |" in text
    assert text.count("entries that pass in training") == 1


def test_a_cell_of_fewer_seeds_says_so(swept: Path) -> None:
    extra = replace(RELU, nonlinearity="maxk", k=4, groups=1, seed=0, test=0.9)
    store.append(swept / score.SCORES, [extra])
    ((_, study),) = sections.studies([swept])
    assert "70.13 ± 0.50** | 90.00 ± 0.00 (1) | 90.13" in accuracy.study_tables(study)


def test_a_sweep_rewrites_a_page(
    swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "accuracy.md"
    target.write_text("before\n<!-- results -->\nold\n<!-- /results -->\nafter\n")
    assert main(["report", str(swept), "--into", str(target)]) == 0
    assert re.match(r"before\n<!-- results -->\n\n\*\*GraphSAGE, maxk\*\*", target.read_text())
    assert "old" not in target.read_text()
    capsys.readouterr()
    # A row of another kind beside the sweep.
    (swept / "other.jsonl").write_text("{}\n")
    assert main(["report", str(swept)]) == 0
    assert capsys.readouterr().out.startswith("## Accuracy over k")
    assert main(["report", str(swept), "--plots", str(tmp_path / "plots")]) == 0
    assert (tmp_path / "plots" / "cora.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert main(["report", str(tmp_path / "gone")]) == 2
    assert "no such file or folder" in capsys.readouterr().err


def test_two_sweeps_compared(
    swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.append(tmp_path / "other" / score.SCORES, scores(shift=-0.05))
    assert main(["report", "compare", str(swept), str(tmp_path / "other")]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    words = {line.split(" | ")[3]: line.removesuffix(" |").rpartition("| ")[2] for line in lines}
    assert words == {"-": "not distinguishable", "2": "worse", "8": "worse"}
    with pytest.raises(DataError, match="no setting with two seeds in common"):
        accuracy.compare_sweeps(scores()[:1], scores()[:1])


def test_two_runs_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = run_folder(tmp_path / "slow", [0.50, 0.51, 0.52], [0.10, 0.11, 0.12])
    fast = run_folder(tmp_path / "fast", [0.60, 0.61, 0.63], [0.05, 0.06, 0.07])
    assert main(["report", "compare", str(slow), str(fast)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("slow -> fast, the score: better, +10.33 points in [")
    assert second == "slow -> fast, the epoch: better, 110 -> 60.0 ms"
    back = trained.compare_runs(trained.read_run(fast), trained.read_run(slow))
    assert ["worse" in line for line in back] == [True, True]
    one = run_folder(tmp_path / "one", [0.9], [0.105])
    lines = trained.compare_runs(trained.read_run(slow), trained.read_run(one))
    assert ["not distinguishable" in line for line in lines] == [True, True]
    (fast / "summary.json").write_text("{}")
    with pytest.raises(DataError, match="is no whole run folder"):
        trained.read_run(fast)
