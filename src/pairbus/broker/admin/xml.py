"""Request bodies as trees of elements, read with care: no document type, bounded depth, names by namespace URI."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

ATOM = "http://www.w3.org/2005/Atom"
SERVICE = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA = "http://www.w3.org/2001/XMLSchema"

DEPTH_MAX = 32  # entry / content / QueueDescription / AuthorizationRules / rule / Rights / AccessRights are 7


class MalformedEntry(ValueError):
    """The request body is not an Atom entry that can be read; the text says where it fails."""


@dataclass(slots=True)
class Element:
    """One element with its children. Names are as expat gives them: namespace URI, a space, local name."""

    name: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    text: str = ""

    @property
    def type(self) -> str:
        """The local part of `i:type`, without the prefix that differs between SDKs; empty when there is none."""
        return self.attributes.get(f"{INSTANCE} type", "").rpartition(":")[2].strip()

    @property
    def is_nil(self) -> bool:
        return self.attributes.get(f"{INSTANCE} nil", "").strip().lower() in ("true", "1")

    def of_service(self) -> Iterator[tuple[str, Element]]:
        """Yield the local names and elements of the service's namespace among the children; others are ignored."""
        for child in self.children:
            if (local := service_name(child.name)) is not None:
                yield local, child

    def members(self) -> dict[str, Element]:
        """Return the children by local name; MalformedEntry when one occurs twice."""
        members: dict[str, Element] = {}
        for local, child in self.of_service():
            if local in members:
                raise MalformedEntry(f"{local} occurs twice")
            members[local] = child
        return members


def service_name(name: str) -> str | None:
    """Return the local part of a name in the service's namespace, else None."""
    uri, _, local = name.rpartition(" ")
    return local if uri == SERVICE else None


def parse_description(body: bytes) -> tuple[str, Element]:
    """Read `entry/content/<kind>`: the kind and its element, or MalformedEntry."""
    root = parse(body)
    if root.name != f"{ATOM} entry":
        raise MalformedEntry(f"the request body is {root.name!r}; expected is '{ATOM} entry'")
    descriptions = [
        (local, element)
        for content in root.children
        if content.name == f"{ATOM} content"
        for local, element in content.of_service()
    ]
    if not descriptions:
        raise MalformedEntry(f"the request body has no description inside entry/content of {ATOM}")
    if len(descriptions) > 1:
        raise MalformedEntry(f"the request body describes both a {descriptions[0][0]} and a {descriptions[1][0]}")
    return descriptions[0]


def parse(body: bytes) -> Element:
    """Read a document, or MalformedEntry. A DTD is refused before it is read."""
    reader = _TreeReader()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = reader.doctype
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        raise MalformedEntry(f"the request body is not well-formed XML: {error}") from None
    assert reader.root is not None  # the document is well-formed
    return reader.root


@dataclass(slots=True)
class _TreeReader:
    root: Element | None = None
    path: list[Element] = field(default_factory=list)
    "Elements that are open."

    def doctype(self, *_: object) -> None:
        raise MalformedEntry("the request body has a document type declaration; none is allowed")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self.path) >= DEPTH_MAX:
            raise MalformedEntry(f"the request body is nested deeper than {DEPTH_MAX} elements")
        element = Element(name, attributes)
        if self.path:
            self.path[-1].children.append(element)
        else:
            self.root = element
        self.path.append(element)

    def end(self, _: str) -> None:
        self.path.pop()

    def text(self, text: str) -> None:
        self.path[-1].text += text
