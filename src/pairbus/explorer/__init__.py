"""The verbs of a Service Bus explorer, on our own transport: on the broker and on Azure, without any user interface.

    async with Carrier("Endpoint=sb://…") as carrier:
        orders = Address.parse("orders")
        for payload in await peek(carrier, orders, from_sequence=0, count=50):
            print(described(payload)["body"])
        dead_letters = Address.parse("orders", dead_letter=True)
        await move(carrier, dead_letters, carrier, "orders-retry", choice=Choice(text="EUR"))

Addresses are `Address`, messages are encoded bytes: `described` shows one as a JSON object, `encoded` makes one of an
object, `edited` changes one. Errors are PairbusErrors of one line that name entity and namespace. Verbs that take long
count in a `Progress`, and may be cancelled: no message stays locked, none is lost. Verbs that take messages out of an
entity do not touch messages that arrive after the verb has begun.
"""

from pairbus.explorer.address import Address
from pairbus.explorer.calls import Unreachable
from pairbus.explorer.choice import Choice, state_of, view_of
from pairbus.explorer.counting import Count, count
from pairbus.explorer.dead_letters import Group, grouped, redrive
from pairbus.explorer.encoding import BadMessage, edited, encoded, importable
from pairbus.explorer.files import ImportFile, Lines, Notes, export, import_file, import_lines, json_line, json_object
from pairbus.explorer.message import body_bytes, described, sendable, sequence_number_of
from pairbus.explorer.pages import extent, peek, search, walk
from pairbus.explorer.progress import Progress
from pairbus.explorer.rules import rules, would_match
from pairbus.explorer.schedule import cancel, scheduled
from pairbus.explorer.sessions import session_ids, session_state, sessions
from pairbus.explorer.verbs import move, purge, receive, receive_and_delete, resend, send

__all__ = [
    "Address",
    "BadMessage",
    "Choice",
    "Count",
    "Group",
    "ImportFile",
    "Lines",
    "Notes",
    "Progress",
    "Unreachable",
    "body_bytes",
    "cancel",
    "count",
    "described",
    "edited",
    "encoded",
    "export",
    "extent",
    "grouped",
    "import_file",
    "import_lines",
    "importable",
    "json_line",
    "json_object",
    "move",
    "peek",
    "purge",
    "receive",
    "receive_and_delete",
    "redrive",
    "resend",
    "rules",
    "scheduled",
    "search",
    "send",
    "sendable",
    "sequence_number_of",
    "session_ids",
    "session_state",
    "sessions",
    "state_of",
    "view_of",
    "walk",
    "would_match",
]
