"""The Celery application: messages are hints to look at a row, so nothing here keeps a promise.

`acks_late` stays False: after the start the lease owns recovery, and a redelivered message would
only be refused.
"""

import logging.config
import os
from typing import Any

from celery import Celery
from celery.signals import setup_logging
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_project.settings")

# From the fetch of a message on: far above the longest time that one is held (place lead), far
# below an operator's patience. The shortest of any process on this Redis wins, so set it once.
VISIBILITY_TIMEOUT_S = 300
MAINTENANCE_QUEUE = "maintenance"

app = Celery("scheduler_project")
app.conf.update(
    broker_url=settings.REDIS_URL,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={
        "visibility_timeout": VISIBILITY_TIMEOUT_S,
        "socket_timeout": 5,
        "socket_connect_timeout": 2,
        "socket_keepalive": True,
        "health_check_interval": 10,
    },
    result_backend="django-db",
    result_extended=True,
    task_default_queue=MAINTENANCE_QUEUE,
    task_ignore_result=True,
    # A publisher must not hang on a broker that is away: the row is sent again, or found.
    task_publish_retry=False,
    task_serializer="json",
    accept_content=["json"],
    timezone="UTC",
    enable_utc=True,
    worker_prefetch_multiplier=1,
    worker_send_task_events=True,
    task_send_sent_event=False,
    # The keeper drains; Celery must not reconnect for ever while the process wants to end.
    worker_cancel_long_running_tasks_on_connection_loss=False,
    worker_hijack_root_logger=False,
)
app.autodiscover_tasks(["workers"])


@setup_logging.connect
def use_our_logging(**_: Any) -> None:
    """Log as the settings say: with a receiver here, Celery leaves logging alone."""
    logging.config.dictConfig(settings.LOGGING)
