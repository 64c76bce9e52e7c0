"""Dockerfiles as lists of instructions, and the rules that ours keep: those of hadolint that can apply to them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

INSTRUCTIONS = {
    *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "SHELL"),
    *("STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
}
ONCE = ("CMD", "ENTRYPOINT", "HEALTHCHECK")
SECRET = re.compile(r"\b\w*(?:KEY|PASSWORD|SECRET|TOKEN)\w*=", re.IGNORECASE)


@dataclass(frozen=True)
class Instruction:
    name: str
    value: str
    line: int


def instructions(text: str) -> list[Instruction]:
    """Read a Dockerfile: comments are left out, continued lines are joined."""
    found: list[Instruction] = []
    begun, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        first = first if begun else number
        begun += line.strip().removesuffix("\\")
        if line.rstrip().endswith("\\"):
            continue
        name, _, value = begun.partition(" ")
        found.append(Instruction(name, value.strip(), first))
        begun = ""
    assert not begun, "the last line is continued, and there is no next one"
    return found


def command_of(value: str) -> list[str] | None:
    """Return the words of a command in its JSON form; None: it is in the shell's form."""
    try:
        words = json.loads(value[value.index("[") :])
    except ValueError:
        return None
    return words if isinstance(words, list) else None


def faults_of(text: str) -> list[str]:
    """Return one sentence for each rule that the file breaks."""
    found = instructions(text)
    names = [each.name for each in found]
    faults = [f"line {each.line}: unknown instruction {each.name}" for each in found if each.name not in INSTRUCTIONS]
    if names[:1] != ["FROM"]:
        faults.append("the first instruction is not FROM")
    faults += [f"{name} occurs {names.count(name)} times" for name in ONCE if names.count(name) > 1]
    users = [each.value for each in found if each.name == "USER"]
    if not users or users[-1].split(":")[0] in ("root", "0"):
        faults.append("the container runs as root")
    return faults + [f"line {each.line}: {fault}" for each in found for fault in _faults_in(each)]


def _faults_in(each: Instruction) -> list[str]:
    value, faults = each.value, []
    match each.name:
        case "FROM" if not re.search(r":(?!latest\b)[\w.-]+|@sha256:", value):
            faults.append("the base image has no fixed tag")
        case "ADD":
            faults.append("COPY copies files, ADD does more than its reader expects")
        case "CMD" | "ENTRYPOINT" | "HEALTHCHECK" if command_of(value) is None:
            faults.append("without the JSON form a shell gets the signals")
        case "WORKDIR" | "VOLUME" if not value.startswith("/"):
            faults.append("the path is not absolute")
        case "EXPOSE" if not all(port.isdecimal() and 0 < int(port) < 65536 for port in value.split()):
            faults.append(f"{value!r} are no ports")
        case "ENV" | "ARG" if SECRET.search(value):
            faults.append("a secret stays readable in the image")
        case "RUN":
            faults += _faults_in_shell(value)
    return faults


def _faults_in_shell(value: str) -> list[str]:
    faults = []
    if "pip install" in value and "--no-cache-dir" not in value:
        faults.append("pip leaves its cache in the image")
    if re.search(r"\bsudo\b|\bcd /", value):
        faults.append("neither sudo nor cd belongs here")
    if re.search(r";\s|\|", value):
        faults.append("the failure of an earlier command would be hidden")
    if "apt-get install" in value and "rm -rf /var/lib/apt/lists" not in value:
        faults.append("the package lists stay in the image")
    return faults
