"""Addresses of links and paths of URLs: which entity, and which of its boxes, a client means."""

from __future__ import annotations

import pytest

from pairbus.broker.wire.address import EntityName, LinkAddress, parse_address, parse_entity


@pytest.mark.parametrize(
    ("raw", "address"),
    [
        ("orders", LinkAddress("orders", "orders")),
        ("/Orders/", LinkAddress("Orders", "orders")),
        ("amqps://contoso.servicebus.windows.net/Orders", LinkAddress("Orders", "orders")),
        ("SB://127.0.0.1:5672/orders", LinkAddress("orders", "orders")),
        ("orders/$DeadLetterQueue", LinkAddress("orders/$DeadLetterQueue", "orders", is_dead_letter=True)),
        ("orders/$management", LinkAddress("orders/$management", "orders", is_management=True)),
        (
            "orders/$deadletterqueue/$Management",
            LinkAddress("orders/$deadletterqueue/$Management", "orders", is_dead_letter=True, is_management=True),
        ),
        (
            "orders/$Transfer/$DeadLetterQueue",
            LinkAddress("orders/$Transfer/$DeadLetterQueue", "orders", is_transfer_dead_letter=True),
        ),
        (
            "orders/$Transfer",
            LinkAddress("orders/$Transfer", "orders/$transfer"),
        ),  # no queue of the service has this name
        ("News/Subscriptions/One", LinkAddress("News/Subscriptions/One", "news/subscriptions/one")),
    ],
)
def test_an_address_names_an_entity_and_a_box_in_any_case(raw: str, address: LinkAddress) -> None:
    """Each SDK spells addresses in its own way, and all of them mean the same entity."""
    assert parse_address(raw) == address
    assert not address.is_cbs
    assert parse_address("amqp://localhost/$cbs").is_cbs


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Orders", EntityName("Orders")),
        ("eu/orders/new", EntityName("eu/orders/new")),
        ("news/subscriptions", EntityName("news", lists="subscriptions")),
        ("news/Subscriptions/One", EntityName("news", "One")),
        ("news/subscriptions/one/RULES", EntityName("news", "one", lists="rules")),
        ("eu/news/subscriptions/one/rules/$Default", EntityName("eu/news", "one", "$Default")),
        ("news/subscriptions/one/more", EntityName("news/subscriptions/one/more")),  # a queue with a strange name
    ],
)
def test_a_path_names_an_entity_or_all_below_a_topic(path: str, name: EntityName) -> None:
    """The administration gets one URL for an entity and another for a list; the names keep their spelling."""
    assert parse_entity(path) == parse_entity(f"/{path}/") == name
