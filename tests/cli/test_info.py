from __future__ import annotations

import json
from pathlib import Path

import pytest

from maxk.cli.main import main
from maxk.core.settings import settings


def test_a_broken_install_is_told_with_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for folder, told in ((tmp_path / "cache", False), (tmp_path / "file" / "cache", True)):
        monkeypatch.setenv("MAXK_CACHE_DIR", str(folder))
        settings.cache_clear()
        try:
            assert main(["info"]) == 0
            shown = capsys.readouterr().out
            assert main(["info", "--json"]) == 0
            listed = json.loads(capsys.readouterr().out)["problems"]
        finally:
            settings.cache_clear()
        what = "problem: compiled kernels cannot be kept"
        assert (what in shown) == told
        assert ("cure: set MAXK_CACHE_DIR to a folder that you may write" in shown) == told
        assert [problem["cure"].split()[1] for problem in listed] == ["MAXK_CACHE_DIR"] * told
        assert ("no problems found" in shown) != told
