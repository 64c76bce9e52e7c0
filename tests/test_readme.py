"""The README's first screen is what happens: its lines are typed as they stand, into a shell of the reader's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.brokers import BrokerProcess
from tests.pages import blocks, taking, text_of

README = "README.md"
RUN_S = 120
LINES_MAX = 110


def typed(lines: str, folder: Path, process: BrokerProcess) -> subprocess.CompletedProcess[str]:
    """Run lines of the page in bash, with the ports that this broker has instead of 5672 and 5673."""
    for port, namespace in (("5672", "contoso"), ("5673", "fabrikam")):
        lines = lines.replace(port, str(process.ports[namespace]))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-ec", lines],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
        env={**os.environ, "PATH": path},
    )


@pytest.mark.slow
def test_readme_fails_over_a_queue_of_the_reader(tmp_path: Path) -> None:
    """Every line of its first chapter, from the broker to the message that comes home; the comments tell the output."""
    with taking("test_readme_fails_over_a_queue_of_the_reader") as take:
        start, prepare, sender = take("python3 -m venv"), take("export PAIRBUS_PRIMARY"), take("import os")
        story = take("python send.py")
    assert re.fullmatch(r"pairbus broker --namespace contoso=\d+ --namespace fabrikam=\d+\n", start), (
        "as is started below"
    )
    (tmp_path / "send.py").write_text(sender)
    with BrokerProcess(tmp_path / "pairbus-data", namespaces=["contoso", "fabrikam"]) as process:
        exports = prepare.split("pairbus queue create")[0]
        missing = typed(exports + "python send.py", tmp_path, process)
        assert "ServiceBusAuthenticationError" in missing.stderr, "what the page says of a queue that is missing"
        done = typed(prepare + story, tmp_path, process)
    assert done.returncode == 0, done.stderr
    comments = re.findall(r"# (<.*>|moved .*)$", story, re.MULTILINE)
    assert len(comments) == 3
    told = [line for line in done.stdout.splitlines() if line.startswith(("<", "moved"))]
    assert [without_times(line) for line in told] == [without_times(line) for line in comments]


def without_times(line: str) -> str:
    return re.sub(r"\d+\.\ds", "N s", line)


def test_readme_is_short() -> None:
    """Twelve lines of code, a failover in fifteen lines, and pages for everything else."""
    install, prepare, story = blocks(README, "sh")[:3]
    [sender] = blocks(README, "python")
    assert len(sender.splitlines()) <= 12
    until_failover = story[: story.index("FAILED_OVER")].splitlines()
    lines = [*install.splitlines()[1:], *prepare.splitlines(), *filter(None, sender.splitlines()), *until_failover]
    assert len(lines) <= 15, "lines to type until a queue of the reader fails over"
    assert len(text_of(README).splitlines()) <= LINES_MAX
    assert text_of(README).count("![") == 1
