"""A test of an application that must survive an outage. The fixtures come with `pairbus[broker]`."""

from azure.servicebus import ServiceBusMessage


def test_order_is_stored_during_an_outage(servicebus_pair, outage):
    servicebus_pair.primary.create_queue("orders")
    client = servicebus_pair.client(failover_interval=0)
    with client.get_queue_sender("orders") as sender:
        with outage("refuse"):
            sender.send_messages(ServiceBusMessage("a book"))
        assert "FAILED_OVER" in repr(sender) and "diverted=1" in repr(sender)
