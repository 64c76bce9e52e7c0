"""Errors of the commands about `--engine spark` before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairbus.cli import main
from pairbus.cli.pipeline.spark_options import default_journal_on
from pairbus.cli.pipeline.spark_place import SparkPlace
from pairbus.cli.pipeline.spark_start import place_of

CS = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["syphon", "--primary", CS, "--secondary", CS, "--master", "spark://h:7077"],
            "spark://h:7077 needs --journal",
        ),
        (["syphon", "--primary", CS, "--secondary", CS, "--journal", "j", "--master", "spark://h:7077"], "@FILE"),
        (
            ["redrive", "orders", "--connection-string", CS, "--master", "yarn"],
            "--engine spark on yarn needs --journal",
        ),
        (["redrive", "orders", "--connection-string", "env:NOT_SET"], "environment variable NOT_SET is not set"),
    ],
)
def test_what_spark_needs_is_said_at_once(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a key that executors cannot read, or a missing journal, would be noticed minutes later."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--engine", "spark", "--primary-name", "contoso"] if arguments[0] == "syphon" else
             [*arguments, "--engine", "spark"])  # fmt: skip
    assert ended.value.code in (1, 2)
    said = capsys.readouterr()
    assert says in " ".join((said.out + said.err).split())
    assert "c2VjcmV0" not in said.out + said.err


@pytest.mark.parametrize(
    ("given", "master", "place"),
    [
        ("@/run/secrets/cs", "spark://h:7077", "@/run/secrets/cs"),
        ("env:CONTOSO", "spark://h:7077", "env:CONTOSO"),
        ("env:CONTOSO", "local[2]", "env:CONTOSO"),
        (CS, "local[2]", "env:PAIRBUS_PRIMARY"),
    ],
)
def test_executors_are_told_a_place_and_never_a_key(
    given: str, master: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key given in the clear to a command on one machine reaches its workers by their environment."""
    monkeypatch.setenv("PAIRBUS_PRIMARY", "")
    assert place_of(given, CS, "PAIRBUS_PRIMARY", SparkPlace(master, None)) == place


def test_a_journal_on_one_machine_has_a_default_place_that_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pair has its own journal, in the user's state folder; no folder is made before Spark runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("PAIRBUS_PRIMARY", "")
    one = default_journal_on(SparkPlace("local[4]", None), ("fabrikam", "contoso"))
    other = default_journal_on(SparkPlace("local", None), ("fabrikam", "northwind"))
    assert one != other and one.parent == other.parent == tmp_path / "pairbus" / "journal"
    assert f"the journal is in {one}" in capsys.readouterr().err
    assert not (tmp_path / "pairbus").exists()


def test_options_of_spark_are_refused_without_spark(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["syphon", "--primary", CS, "--secondary", CS, "--primary-name", "contoso", "--tasks", "4"])
    assert "--tasks need --engine spark" in " ".join(capsys.readouterr().err.split())
