"""The Celery application. Its settings are the CELERY_… ones of settings.py, read when needed."""

import logging.config
import os
from typing import Any

from celery import Celery
from celery.signals import setup_logging
from django.conf import settings

from scheduler_project.lib import due_timers

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "scheduler_project.settings")

app = Celery("scheduler_project")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
due_timers.install(app)


@setup_logging.connect
def use_our_logging(**_: Any) -> None:
    """Log as the settings say: with a receiver here, Celery leaves logging alone."""
    logging.config.dictConfig(settings.LOGGING)
