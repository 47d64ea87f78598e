"""The fleet as the database knows it: one row per life of a worker process."""

import uuid

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now


class WorkerSession(models.Model):
    """One life of one worker process. As with an etcd lease, renewing it keeps all its runs.

    Identity is a random id, never the host's name: two processes of one name are two sessions.
    """

    session_id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    node = models.CharField(max_length=255)
    celery_name = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    queue = models.CharField(max_length=255)
    region = models.CharField(max_length=64)
    tiers = ArrayField(models.CharField(max_length=32))
    slots = models.PositiveIntegerField()
    prepared_limit = models.PositiveIntegerField()
    started_at = models.DateTimeField(db_default=Now())
    # Every second; a session silent for SILENT_S gets nothing new.
    last_seen_at = models.DateTimeField(db_default=Now())
    lease_expires_at = models.DateTimeField()
    # False while the worker can't vouch for its containers (engine or warden away).
    accepting = models.BooleanField(default=True)
    not_accepting_reason = models.CharField(max_length=200, default="")
    draining = models.BooleanField(default=False)
    cordoned = models.BooleanField(default=False)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "worker_sessions"
        indexes = [
            # Dispatcher and reaper look at live sessions; dead ones are history.
            models.Index(
                fields=["lease_expires_at"],
                name="sessions_live",
                condition=models.Q(ended_at=None),
            )
        ]

    def __str__(self) -> str:
        return f"{self.celery_name} ({self.session_id})"
