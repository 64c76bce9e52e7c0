"""An outage from beginning to end: sends succeed while the primary is dead, and every message comes home.

The drill starts two brokers and kills the first one. With PAIRBUS_PRIMARY and PAIRBUS_SECONDARY it uses two namespaces
of your own instead, kills nothing, and diverts by `force_failover`. It needs a queue `drill` that nobody else uses.
"""

import logging
import time
from collections import Counter

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from namespaces import Namespaces, namespaces

from pairbus import PairedSender, PairedServiceBusClient, State
from pairbus.pairing.events import Diverted, Event, FailedOver, Moved, Recovered, Suspected

QUEUE = "drill"
logging.getLogger("pairbus").setLevel(logging.ERROR)  # otherwise log and events would report everything twice
started = time.monotonic()


def say(text: object) -> None:
    # Text and line end in one write: events are reported by another thread, which prints too.
    print(f"{time.monotonic() - started:5.1f} s  {text}\n", end="", flush=True)


class Drill:
    def __init__(self, pair: Namespaces) -> None:
        self.pair = pair
        self.count: Counter[str] = Counter()

    def heard(self, event: Event) -> None:
        if isinstance(event, Diverted | Moved):
            self.count[type(event).__name__] += event.count
        elif isinstance(event, Suspected | FailedOver | Recovered):
            say(event)

    def send_for(self, seconds: float, sender: PairedSender) -> None:
        """Send ten messages a second. The caller still owns a message whose send failed; this caller only counts it."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                sender.send_messages(ServiceBusMessage(f"order {self.count['accepted']}"), timeout=10)
                self.count["accepted"] += 1
            except ServiceBusError as error:
                self.count["refused"] += 1
                say(f"a send is refused: {type(error).__name__}")
            time.sleep(0.1)

    def lose(self, client: PairedServiceBusClient) -> None:
        if self.pair.local is None:
            client.force_failover(QUEUE)
        else:
            say("kill -9 of the primary")
            self.pair.local.kill()

    def heal(self, client: PairedServiceBusClient) -> None:
        if self.pair.local is None:
            client.force_healthy(QUEUE)
        else:
            self.pair.local.start()
            say("the primary is there again")

    def run(self) -> None:
        with self.client() as client, client.get_queue_sender(QUEUE) as sender:
            self.send_for(1, sender)
            self.lose(client)
            self.send_for(3.5, sender)
            say(sender)
            self.heal(client)
            while client.states()[QUEUE] is not State.HEALTHY:
                time.sleep(0.1)
            self.send_for(1, sender)
        found = self.receive()
        accepted = self.count["accepted"]
        say(f"{accepted} accepted, {self.count['refused']} refused, {found} received, {accepted - found} lost")

    def receive(self) -> int:
        """Receive as an application does: from the primary, with a client that runs the syphon."""
        found: set[str | None] = set()
        with self.client(enable_syphon=True) as client:
            while self.count["Moved"] < self.count["Diverted"]:
                time.sleep(0.1)
            say(f"{self.count['Diverted']} were diverted, {self.count['Moved']} are moved home")
            with client.get_queue_receiver(QUEUE, max_wait_time=1) as receiver:
                for message in receiver:
                    found.add(message.message_id)
                    receiver.complete_message(message)
        return len(found)

    def client(self, *, enable_syphon: bool = False) -> PairedServiceBusClient:
        return PairedServiceBusClient.from_connection_strings(
            self.pair.primary,
            self.pair.secondary,
            backlog_queue_count=2,
            failover_interval=1,
            ping_primary_interval=1,
            enable_syphon=enable_syphon,
            on_event=self.heard,
        )


if __name__ == "__main__":
    with namespaces(QUEUE) as both:
        say("two namespaces are there")
        Drill(both).run()
