from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from maxk.cli.main import main
from maxk.ops.dispatch import OPERATIONS
from maxk.train.config import TrainConfig

DATA = "synthetic:nodes=80,degree=4,communities=3,features=6"
SMALL = ["--dataset", DATA, "--hidden", "8", "--k", "4", "--layers", "2", "--device", "cpu"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Runs a command that must be refused, and returns its one line."""
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("maxk: ")
    return captured.err[len("maxk: ") : -1]


def written(path: Path, **arrays: object) -> str:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return str(path)


def hub_and_ring(path: Path, nodes: int = 200) -> str:
    """A ring, and node 0 linked both ways with all."""
    ids = np.arange(nodes)
    hub = np.stack([np.zeros(nodes - 1, np.int64), ids[1:]])
    edges = np.concatenate([np.stack([ids, (ids + 1) % nodes]), hub, hub[::-1]], axis=1)
    x = np.random.default_rng(0).normal(size=(nodes, 8)).astype(np.float32)
    return written(
        path,
        edge_index=edges,
        x=x,
        y=(x[:, 0] > 0).astype(np.int64),
        train_mask=ids % 3 == 0,
        val_mask=ids % 3 == 1,
        test_mask=ids % 3 == 2,
    )


def test_help_and_wrong_flags_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from maxk.cli.main import main\n"
        "codes = [main(words.split()) for words in ('', '--help', 'train --help', 'data --help', "
        "'info --help', 'data', 'bench', 'bench kernels --help', 'train --k 0', 'train --kk 3', "
        "'nothing')]\n"
        "heavy = ('torch', 'numba', 'sklearn', 'scipy', 'numpy')\n"
        "print(codes, [name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2] []"


def test_the_module_is_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    shown = capsys.readouterr().out
    assert re.fullmatch(r"maxk \d+\.\d+\.\d+\S*\n", shown)
    words = [sys.executable, "-m", "maxk"]
    module = subprocess.run([*words, "--version"], capture_output=True, text=True, check=False)
    assert (module.returncode, module.stdout) == (0, shown)
    wrong = subprocess.run(
        [*words, "train", "--k", "0"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr


def test_every_setting_is_a_flag_with_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--weight-decay X L2 penalty added to the gradient by Adam. [default: 0.0]" in shown
    assert "--self-loops / --no-self-loops" in shown
    assert "--norm layer|batch|none" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--k", "0"], "--k must lie in [1, 256] (--hidden is 256), got 0"),
        (["--k", "300", "--hidden", "64"], "--k must lie in [1, 64] (--hidden is 64), got 300"),
        (["--k", "2.5"], "--k must be a whole number, got '2.5'"),
        (["--model", "gat"], "--model must be one of sage, gcn, gin, got 'gat'"),
    ],
)
def test_wrong_values_are_refused_before_data_is_loaded(
    capsys: pytest.CaptureFixture[str], here: Path, words: list[str], message: str
) -> None:
    # The data set does not exist, and yet it is the value that is named.
    assert refused(capsys, "train", "--dataset", "nowhere.npz", *words) == message
    assert list(here.iterdir()) == []


def test_wrong_usage_is_one_line_too(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    # The colon and the quotes are the parser's, and differ between its releases.
    assert re.search("No such option:? '?--hiden", refused(capsys, "train", "--hiden", "3"))
    assert "No such command 'trian'" in refused(capsys, "trian")
    assert "Missing argument 'RUN'" in refused(capsys, "evaluate")
    assert "nowhere" in refused(capsys, "train", "--dataset", "nowhere")
    assert "nowhere" in refused(capsys, "data", "describe", "nowhere")
    assert "is no run folder" in refused(capsys, "evaluate", "nowhere")
    assert "is no run folder" in refused(capsys, "predict", "nowhere")
    assert "is no run folder" in refused(capsys, "train", "--resume", "nowhere")
    assert "--device cuda:99" in refused(capsys, "train", *SMALL[:-1], "cuda:99")
    assert list(here.iterdir()) == []


def test_settings_come_from_flags_then_the_file(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    (here / "mine.toml").write_text('model = "gin"\nk = 2\nepochs = 2\nhiden = 8\n')
    told = refused(capsys, "train", "--config", "mine.toml", *SMALL)
    assert told == "mine.toml has an unknown key 'hiden'; did you mean 'hidden'?"
    (here / "mine.toml").write_text('model = "gin"\nk = 2\nepochs = 2\nundirected = true\n')
    words = ["train", "--config", "mine.toml", *SMALL, "--no-undirected", "--out", "r"]
    assert main(words) == 0
    config = TrainConfig.from_toml("r/config.toml")
    assert (config.model, config.k, config.epochs) == ("gin", 4, 2)
    assert not config.undirected
    assert main(["train", "--config", "r/config.toml", "--out", "again", "--quiet"]) == 0
    assert Path("again/last.safetensors").read_bytes() == Path("r/last.safetensors").read_bytes()


def test_results_go_to_stdout_and_progress_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL, "--epochs", "3", "--out", "loud"]) == 0
    captured = capsys.readouterr()
    assert "test accuracy" in captured.out
    assert captured.out.endswith("saved in loud\n")
    assert "synthetic: 80 nodes" in captured.err
    assert captured.err.count("epoch ") == 3
    assert "\x1b" not in captured.err + captured.out
    assert main(["train", *SMALL, "--epochs", "3", "--out", "quiet", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "test accuracy" in captured.out


def test_a_bar_shows_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["train", *SMALL, "--epochs", "3", "--out", "bar"]) == 0
    shown = capsys.readouterr().err
    assert "3/3" in re.sub(r"\x1b\[[\d;?]*\w", "", shown)
    assert "epoch 1/3" not in shown


def test_a_run_is_scored_and_predicted_from(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = hub_and_ring(here / "a.npz")
    words = ["train", "--dataset", "a.npz", "--hidden", "8", "--k", "4", "--epochs", "3"]
    assert main([*words, "--out", "r", "--seeds", "2", "--quiet"]) == 0
    assert "mean and sd of 2 seeds" in capsys.readouterr().out
    summary = json.loads(Path("r/summary.json").read_text())
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert main(["evaluate", str(here / "r"), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert [s["test"] for s in scores] == [r["test"] for r in summary["runs"]]
    run = str(here / "r" / "seed-1")
    assert main(["evaluate", run, "--dataset", data]) == 0
    assert f"{100 * scores[1]['test']:.2f} %" in capsys.readouterr().out
    assert main(["predict", run, "--out", "p.npz"]) == 0
    with np.load("p.npz", allow_pickle=False) as saved, np.load(data) as given:
        assert saved["logits"].shape == (200, 2)
        assert (saved["logits"].argmax(1) == saved["prediction"]).all()
        right = saved["prediction"] == given["y"]
        assert right[given["test_mask"]].mean() == pytest.approx(scores[1]["test"])
    assert [p.name for p in elsewhere.iterdir()] == ["p.npz"]


def test_other_data_than_the_model_was_made_for_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", *SMALL, "--epochs", "1", "--out", "r", "--quiet"]) == 0
    capsys.readouterr()
    other = DATA.replace("features=6", "features=7")
    assert "do not fit the model" in refused(capsys, "evaluate", "r", "--dataset", other)


def test_a_graph_without_edges_trains_from_the_command_line(here: Path) -> None:
    third = np.arange(4) % 3
    data = written(
        here / "bare.npz",
        edge_index=np.zeros((2, 0), np.int64),
        x=np.ones((4, 2), np.float32),
        y=np.array([0, 1, 0, 1]),
        train_mask=third == 0,
        val_mask=third == 1,
        test_mask=third == 2,
    )
    for model in ("sage", "gcn", "gin"):
        words = ["train", "--dataset", data, "--model", model, "--hidden", "4", "--k", "2"]
        assert main([*words, "--epochs", "1", "--self-loops", "--quiet"]) == 0
        assert main([*words, "--epochs", "1", "--quiet"]) == 0


def test_the_same_seed_gives_the_same_bits_in_every_process(here: Path) -> None:
    hub_and_ring(here / "hub.npz")

    def start(out: str, seed: int) -> subprocess.Popen[bytes]:
        settings = (
            f"--hidden 16 --k 4 --epochs 5 --seed {seed} --deterministic --quiet --device cpu"
        )
        words = [sys.executable, "-m", "maxk", "train", "--dataset", "hub.npz", "--out", out]
        return subprocess.Popen([*words, *settings.split()], stdout=subprocess.DEVNULL)

    processes = [start("a", 1), start("b", 1), start("c", 2)]
    assert [process.wait() for process in processes] == [0, 0, 0]

    def bits(out: str) -> tuple[bytes, list[float]]:
        lines = Path(out, "epochs.jsonl").read_text().splitlines()
        return Path(out, "last.safetensors").read_bytes(), [json.loads(x)["loss"] for x in lines]

    assert bits("a") == bits("b")
    assert len(bits("a")[1]) == 5
    assert bits("a")[0] != bits("c")[0]
    assert bits("a")[1] != bits("c")[1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_sets_the_exit_code(here: Path, number: int, code: int) -> None:
    words = [sys.executable, "-m", "maxk", "train", *SMALL, "--epochs", "1000000", "--out", "r"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    epochs = here / "r" / "epochs.jsonl"
    until = time.monotonic() + 60
    while not (epochs.exists() and epochs.read_text().count("\n") >= 5):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    os.kill(process.pid, number)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == code
    assert "Traceback" not in told
    last = epochs.read_text().count("\n")
    assert f"stopped after epoch {last}; continue with maxk train --resume r" in told
    assert main(["train", "--resume", "r", "--epochs", str(last + 2), "--quiet"]) == 0
    assert json.loads((here / "r" / "summary.json").read_text())["epochs"] == last + 2


def test_info_is_for_people_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    shown = capsys.readouterr().out
    assert "torch" in shown
    assert "spgemm" in shown
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {"torch", "cuda", "commit", "date", "threads", "gpus"} <= set(facts)
    assert {row["op"] for row in facts["operations"]} == set(OPERATIONS)
    assert all(row["reason"] for row in facts["operations"])


def test_data_is_listed_and_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list"]) == 0
    assert "digits" in capsys.readouterr().out.split()
    assert main(["data", "describe", DATA, "--json", "--hidden", "16", "--k", "4"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["nodes"], facts["hidden"], facts["k"]) == (80, 16, 4)
    assert main(["data", "describe", DATA]) == 0
    assert "homophily" in capsys.readouterr().out
    assert "--k must lie in [1, 16]" in refused(
        capsys, "data", "describe", DATA, "--hidden", "16", "--k", "17"
    )


def test_the_demo_compares_both_on_digits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--epochs", "2", "--device", "cpu", "--out", "shown"]) == 0
    shown, said = capsys.readouterr()
    # Before the first epoch, which would otherwise show the seconds of compilation as its own.
    assert 0 <= said.index("compiling kernels, once") < said.index("epoch 1/2")
    for word in (
        "maxk (k = 32)",
        "relu",
        "test accuracy",
        "an epoch",
        "select",
        "aggregate",
        "rest",
    ):
        assert word in shown
    for name in ("maxk", "relu"):
        assert f"saved in shown/{name}" in shown
        assert json.loads(Path("shown", name, "summary.json").read_text())["dataset"] == "digits"


@pytest.mark.gpu
def test_a_run_made_on_a_gpu_opens_without_one(here: Path) -> None:
    hub_and_ring(here / "hub.npz")

    def maxk(*words: str, gpu: bool) -> None:
        environment = {**os.environ} if gpu else {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run([sys.executable, "-m", "maxk", *words], env=environment, check=True)

    settings = "--hidden 16 --k 4 --epochs 1 --precision highest --device cuda --out r"
    maxk("train", "--dataset", "hub.npz", *settings.split(), gpu=True)
    maxk("predict", "r", "--out", "gpu.npz", "--device", "cuda", gpu=True)
    maxk("predict", "r", "--out", "cpu.npz", gpu=False)
    with np.load("gpu.npz") as there, np.load("cpu.npz") as without:
        np.testing.assert_allclose(there["logits"], without["logits"], atol=1e-4)
