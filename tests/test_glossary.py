"""One word for one thing: type names with a second meaning, and the glossary of ARCHITECTURE.md."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "pairbus"

# Types with one meaning and two definitions: a face for threads and a face for asyncio.
TWO_FACES = {
    "PairedSender": {"client/client", "client/sync"},
    "PairedServiceBusClient": {"client/client", "client/sync"},
    "ServiceBusClient": {"client/client", "client/sync"},
    "ServiceBusReceiver": {"client/receiving/aio", "client/receiving/sync"},
    "ServiceBusSender": {"client/client", "client/sync"},
    "ServiceBusSession": {"client/receiving/aio", "client/receiving/sync"},
    "ServiceBusProcessor": {"client/processing/aio", "client/processing/sync"},
}

# Packages whose `__all__` is the API of users.
PUBLIC = ("__init__.py", "aio.py", "broker/__init__.py", "explorer/__init__.py", "testing/__init__.py")
# Public types that need no row: plain English, or the words of Azure's SDK, of Python and of AMQP.
PLAIN_WORDS = {
    "Backoff",
    "BadMessage",
    "ClientClosed",
    "Count",
    "DeadLetter",
    "Defer",
    "Failure",
    "FailurePolicy",
    "ImportFile",
    "Kind",
    "Lines",
    "PairbusError",
    "Progress",
    "Retry",
}
PLAIN_WORDS |= {
    "NamespaceOptions",
    "ServiceBusNamespace",
    "ServiceBusSender",
    "SubscriptionConfig",
    "SubscriptionDescription",
    "TopicDescription",
}
PLAIN_WORDS |= {"Notes", "PartlySent", "ReservedPropertyError", "SentMessage", "State", "ThreadClock", "Unreachable"}


@cache
def trees() -> dict[str, ast.Module]:
    """Path below `src/pairbus`, without its ending → the parsed module."""
    paths = sorted(SRC.rglob("*.py"))
    return {path.relative_to(SRC).with_suffix("").as_posix(): ast.parse(path.read_text("utf-8")) for path in paths}


def imported() -> set[tuple[str, str]]:
    """Module and name of everything that one of our modules imports from another."""
    return {
        (str(node.module).removeprefix("pairbus.").replace(".", "/"), alias.name)
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def alias_of(node: ast.AST) -> str | None:
    """Name of a type alias. Options of commands (`Annotated`) and type variables are no types of their own."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
        return None
    name = node.targets[0].id
    is_type = re.match(r"[A-Z]\w*[a-z]", name) and not ast.unparse(node.value).startswith(("Annotated[", "TypeVar("))
    return name if is_type else None


def definitions() -> dict[str, set[str]]:
    """Type name → modules that define it: every public class, and every alias that another module imports."""
    found = defaultdict(set)
    wanted = imported()
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(module)
            elif (name := alias_of(node)) and (module.removesuffix("/__init__"), name) in wanted:
                found[name].add(module)
    return found


def test_type_name_has_one_meaning() -> None:
    """A reader who searches for a type finds one definition."""
    assert {name: places for name, places in definitions().items() if len(places) > 1} == TWO_FACES


def rows_of_the_glossary() -> list[tuple[list[str], str]]:
    """Words of each row of the first table, and their definition."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition("\n# Glossary\n")[2]
    table = text[text.index("| word | is |") :].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    return [([word.strip() for word in cell.split(",")], definition.strip()) for cell, definition in rows]


def glossary() -> list[str]:
    return [word for words, _ in rows_of_the_glossary() for word in words]


def test_word_of_the_glossary_has_one_meaning() -> None:
    """A remark in parentheses would say that the word means something else elsewhere."""
    words = glossary()
    assert [word for word, count in Counter(words).items() if count > 1] == []
    assert [word for word in words if not re.fullmatch(r"[a-z -]+", word)] == []


def test_row_of_the_glossary_names_what_it_defines() -> None:
    """A row has at most two words, and its definition begins with a noun: a list of clauses cannot be assigned to its
    words."""
    rows = rows_of_the_glossary()
    assert [words for words, _ in rows if len(words) > 2] == []
    vague = ("what ", "where ", "whoever ", "when ", "those ", "asks ", "of ")
    assert [(words, definition) for words, definition in rows if definition.lower().startswith(vague)] == []


def test_every_word_of_the_glossary_is_used() -> None:
    """A word that the code does not have misleads a reader who searches for it."""
    words = glossary()
    assert len(words) > 60
    code = "\n".join(path.read_text("utf-8") for path in SRC.rglob("*.py")).lower()
    code += re.sub(r"[-_\s]+", " ", code)
    assert [word for word in words if word.lower() not in code] == []


def test_public_types_have_a_word_in_the_glossary() -> None:
    """A user who meets a type of the API can look up a word of its name; `Paired` is explained by `pair`."""
    known = tuple(part for word in glossary() for part in re.split(r"[\s-]", word.lower()) if len(part) > 3)
    missing = []
    for file in PUBLIC:
        for node in trees()[file.removesuffix(".py")].body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                types = {name for name in ast.literal_eval(node.value) if name[0].isupper() and not name.isupper()}
                for name in types - PLAIN_WORDS:
                    parts = {part.lower() for part in re.findall(r"[A-Z][a-z]+", name)}
                    if not any(part.startswith(known) for part in parts):
                        missing.append(f"{file}: {name}")
    assert missing == []
