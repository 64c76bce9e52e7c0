"""Orders of other applications become Celery tasks: this runs beside the worker of celery_app.

python celery_orders.py
"""

from celery_app import client, ship

from pairbus import ProcessorMessage


def handle(message: ProcessorMessage) -> None:
    ship.delay(str(message))  # the order is completed when the task is stored, in the primary or in a backlog queue


if __name__ == "__main__":
    with client, client.get_queue_processor("orders", handle, max_concurrent_calls=4) as processor:
        processor.run_forever()
