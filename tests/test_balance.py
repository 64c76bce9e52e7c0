"""Files of tests are dealt to processes so that the run ends soon: the longest first, and few of them with a Java."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.balance import DURATIONS, ROOT, SPARKS, UNKNOWN_S, Durations, read_durations, write_durations

RUN_S = 240


def test_longest_file_begins_first_and_an_unknown_one_in_the_middle() -> None:
    """A process that begins a long file last keeps the whole run waiting."""
    durations = Durations({"a": 1.0, "b": UNKNOWN_S + 1, "c": 300.0})
    assert sorted("abcx", key=durations.rank) == ["c", "b", "x", "a"]


def test_files_with_a_spark_are_dealt_evenly_to_a_few_processes() -> None:
    """Each process starts one Java, which its files share."""
    seconds = {"tests/spark/a": 90.0, "tests/spark/b": 50.0, "tests/report/c": 45.0, "tests/report/d": 2.0}
    durations = Durations({"e": 500.0}, seconds)
    scopes = [durations.scope(file) for file in seconds]
    assert scopes == ["spark 0", "spark 1", "spark 1", "spark 0"] and len(set(scopes)) == SPARKS
    assert durations.scope("e") == "e"
    ranked = sorted(["tests/report/c", "tests/report/d", "tests/spark/a", "tests/spark/b", "e"], key=durations.rank)
    assert ranked == ["tests/spark/a", "tests/report/d", "tests/spark/b", "tests/report/c", "e"]


def test_a_new_file_starts_no_further_java() -> None:
    """It is not measured yet, so it runs with the others where tests may get a Spark."""
    durations = Durations({"tests/spark/plain": 3.0}, {"tests/spark/a": 90.0, "tests/report/b": 90.0})
    assert durations.scope("tests/report/new") in {"spark 0", "spark 1"}
    assert durations.rank("tests/report/new") < durations.rank("tests/spark/plain")
    assert durations.scope("tests/spark/plain") == "tests/spark/plain"
    assert durations.scope("tests/cli/new") == "tests/cli/new"


def test_measured_files_replace_their_row_and_removed_files_leave_the_list(tmp_path: Path) -> None:
    path = tmp_path / "durations.json"
    here, other = "tests/test_balance.py", "tests/test_tidy.py"
    path.write_text(json.dumps({"plain": {here: 7.0, "tests/test_gone.py": 9.0}, "spark": {other: 30.0}}))
    write_durations(path, {here: 1.26}, [])
    assert read_durations(path) == Durations({here: 1.3}, {other: 30.0})
    write_durations(path, {here: 2.0, other: 3.0}, [here])
    assert read_durations(path) == Durations({other: 3.0}, {here: 2.0})


def test_files_of_the_list_exist() -> None:
    """A file that was renamed is measured again, or its row follows it."""
    durations = read_durations(DURATIONS)
    assert [file for file in (*durations.plain, *durations.spark) if not (ROOT / file).exists()] == []


def test_one_process_runs_all_files_of_a_share(tmp_path: Path) -> None:
    """The made-up tests write down their process; two files of one share have the same."""
    text = (
        "import os, pathlib\ndef test_it(): pathlib.Path(__file__).with_suffix('.pid').write_text(str(os.getpid()))\n"
    )
    files = [tmp_path / f"test_{name}.py" for name in "abcd"]
    for file in files:
        file.write_text(text)
    spark = {f"test_{name}.py": 1.0 for name in "abc"}
    (tmp_path / "durations.json").write_text(json.dumps({"plain": {}, "spark": spark}))
    (tmp_path / "made_up.py").write_text(
        "from pathlib import Path\nfrom tests import balance\n"
        f"balance.DURATIONS = Path({str(tmp_path)!r}) / 'durations.json'\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "made_up", "-p", "tests.balance", "--rootdir", str(tmp_path)]
    command += ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "-c", "/dev/null", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert run.returncode == 0, run.stdout
    pids = {file.stem: file.with_suffix(".pid").read_text() for file in files}
    assert pids["test_a"] == pids["test_c"] != pids["test_b"]
