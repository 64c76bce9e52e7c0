"""The command line called in this process, as a shell would see it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pairbus.cli import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


class Command:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        captured = self._capsys.readouterr()
        assert "Traceback" not in captured.err
        code = caught.value.code
        assert code is None or isinstance(code, int)
        return Outcome(code or 0, captured.out, captured.err)
