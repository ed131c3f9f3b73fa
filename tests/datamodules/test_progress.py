"""Long loops say how far they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from datamodules import progress


def test_a_log_file_gets_a_line_after_ten_seconds_and_then_one_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock: Iterator[float] = iter([0.0, 0.0, 9.0, 12.0, 30.0, 73.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    assert list(progress.tracked("abcde", "letters", 5)) == [*"abcde"]
    assert capsys.readouterr().out.splitlines() == [
        "letters: 2 of 5, about 0 min to go",
        "letters: 4 of 5, about 0 min to go",
    ]
