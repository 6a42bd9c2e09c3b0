"""What every test may use: an implementation, unwritten memory that shows, --require."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_state


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        action="append",
        default=[],
        metavar="MARKER",
        help="fail instead of skipping the tests of this marker (gpu, multigpu)",
    )

    parser.addoption(
        "--long", action="store_true",
        help="also run the tests marked huge, and many more examples of each property",
    )  # fmt: skip

    parser.addoption(
        "--boundscheck", action="store_true",
        help="compile the CPU kernels so that an index outside an array raises IndexError",
    )  # fmt: skip


def choose_examples(long: bool) -> None:
    """The examples of properties: few that repeat exactly, or many."""
    try:
        from hypothesis import HealthCheck, settings
    except ImportError:
        return  # a machine that runs other tests only; the properties say so themselves
    # Fixtures hold no state that an example could leave behind.
    given: Any = dict(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    settings.register_profile("ci", derandomize=True, max_examples=50, database=None, **given)
    settings.register_profile("long", max_examples=3000, **given)
    settings.load_profile("long" if long else "ci")


def pytest_configure(config: pytest.Config) -> None:
    choose_examples(config.getoption("--long"))
    # Every test starts from these random numbers.
    torch.manual_seed(0)
    if config.getoption("--boundscheck"):
        from maxk.device import cpu

        # Its entries in the cache have names of their own.
        cpu.check_bounds = True
    # One thread a worker where several run: two pools of spinning threads stop each other.
    threads = min(1 if hasattr(config, "workerinput") else 2, torch.get_num_threads())
    torch.set_num_threads(threads)
    # Processes that tests start must give the same bits, so they get the same number of threads.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    # Tests start processes in folders of their own, where a relative path leads nowhere.
    if "PYTHONPATH" in os.environ:
        folders = os.environ["PYTHONPATH"].split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(f).resolve()) for f in folders)


def missing(marker: str) -> str | None:
    needed = {"gpu": 1, "multigpu": 2}.get(marker, 0)
    found = torch.cuda.device_count()
    return None if found >= needed else f"needs {needed} CUDA devices, found {found}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("huge") and not item.config.getoption("--long"):
        pytest.skip("huge: runs with --long")
    for marker in ("gpu", "multigpu"):
        if item.get_closest_marker(marker) is None:
            continue
        reason = missing(marker)
        if reason is None:
            continue
        if marker in item.config.getoption("--require"):
            pytest.fail(f"--require {marker}: {reason}")
        pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ran = [r for r in terminalreporter.getreports("passed") if "gpu" in getattr(r, "keywords", {})]
    terminalreporter.write_line(f"gpu tests ran: {len(ran)}")
    counts = [
        int(count)
        for report in terminalreporter.getreports("passed")
        for name, count in getattr(report, "user_properties", [])
        if name == EXAMPLES
    ]
    if counts:
        terminalreporter.write_line(f"examples of properties: {sum(counts)} in {len(counts)} tests")


EXAMPLES = "examples"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Notes how many examples a property saw, where the report travels to whoever counts."""
    report = yield
    told = getattr(item, "hypothesis_statistics", None)
    if told is not None and report.when == "call":
        count = sum(map(int, re.findall(r"(\d+) passing", told)))
        report.user_properties.append((EXAMPLES, str(count)))
    return report


@pytest.fixture(params=["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def implementation(request: pytest.FixtureRequest) -> str:
    """Name of an implementation; a test that takes it runs over all of them."""
    return str(request.param)


@pytest.fixture
def device(implementation: str) -> torch.device:
    """The device that an implementation runs on."""
    return torch.device("cuda" if implementation == "cuda" else "cpu")


@pytest.fixture(autouse=True)
def same_torch() -> Iterator[None]:
    """Puts back what a test sets of torch, so that none depends on those before it."""
    before = torch_state.snapshot()
    yield
    torch_state.restore(before)


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fills what ``torch.empty`` returns with NaN or the lowest integer.

    A kernel that leaves a cell unwritten then gives a wrong result every time, not by chance.
    """
    empty, empty_like = torch.empty, torch.empty_like

    def poison(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "meta" or torch.compiler.is_compiling():
            return tensor
        with torch.no_grad():
            if tensor.dtype.is_floating_point:
                tensor.fill_(float("nan"))
            elif not tensor.dtype.is_complex and tensor.dtype != torch.bool:
                tensor.fill_(torch.iinfo(tensor.dtype).min)
        return tensor

    monkeypatch.setattr(torch, "empty", lambda *a, **k: poison(empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: poison(empty_like(*a, **k)))
    yield
