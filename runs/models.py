"""One occurrence, one row: runs, their attempts and outputs, guards, shard leases, events.

`runs`, `run_attempts` and `run_outputs` are partitioned by day on `scheduled_for`; their primary
key is (…, scheduled_for). Django sees the first column as the key. A look-up by `run_id` alone
visits every partition: use `runs.domain.run_id.scheduled_for_of` and give both columns.
"""

import uuid
from enum import StrEnum

from django.contrib.postgres.functions import RandomUUID
from django.db import models
from django.db.models.functions import Now

from runs.domain.state import FINAL, RunStatus, Trigger
from runs.webhook_models import DeliveryAttempt, NotificationDelivery, WebhookEndpoint

__all__ = [
    "DeliveryAttempt",
    "JobGuard",
    "NotificationDelivery",
    "OutboxMessage",
    "Run",
    "RunAttempt",
    "RunEvent",
    "RunOutput",
    "SchedulerProcess",
    "ShardLease",
    "WebhookEndpoint",
]


def _choices(values: type[StrEnum]) -> list[tuple[str, str]]:
    return [(value.value, value.name.replace("_", " ").title()) for value in values]


NIL = uuid.UUID(int=0)

# What divides a tenant's own waiting runs: live ones first, then retries, then what is caught up or
# backfilled. An expression of an index: statements that look for a lane spell it the same way.
LANE = models.Case(
    models.When(trigger__in=["catch_up", "backfill"], then=2),
    models.When(failures__gt=0, then=1),
    default=0,
    output_field=models.SmallIntegerField(),
)


# Ended, and not at the first attempt: all dead letters are among these. Also an index's condition.
HAD_TROUBLE = models.Q(finished_at__isnull=False) & (
    models.Q(failures__gt=0) | models.Q(lease_losses__gt=0)
)


class Run(models.Model):
    """One occurrence of a job, or one run made by hand. Written by runs.store, read by selectors.

    Three instants: `scheduled_for` (nominal; identity with the job), `due_at` (nominal + spread;
    never changes), `ready_at` (when it may next be tried).
    """

    run_id = models.UUIDField(primary_key=True)
    scheduled_for = models.DateTimeField()
    job = models.ForeignKey(
        "jobs.Job", on_delete=models.DO_NOTHING, db_constraint=False, db_index=False
    )
    # Nil for occurrences of the schedule, the run's own id for runs made by hand or replayed:
    # run-now never swallows an occurrence.
    manual_key = models.UUIDField(default=NIL)
    job_version = models.PositiveIntegerField()
    tenant = models.ForeignKey(
        "tenants.Tenant", on_delete=models.DO_NOTHING, db_constraint=False, db_index=False
    )
    region = models.CharField(max_length=64)
    tier = models.CharField(max_length=32)
    trigger = models.CharField(max_length=16, choices=_choices(Trigger))
    replay_of = models.UUIDField(null=True)
    # The newer run that took this one's place (overlap = replace), or asked it to make room.
    replaced_by = models.UUIDField(null=True)
    # The latest run that was made of this one by a replay.
    replayed_by = models.UUIDField(null=True)
    status = models.CharField(max_length=16, choices=_choices(RunStatus), default=RunStatus.QUEUED)
    due_at = models.DateTimeField()
    ready_at = models.DateTimeField()
    # From when on it is too late to begin; null: never. `due_at` + the job's deadline.
    deadline_at = models.DateTimeField(null=True)
    # Number of the current or next attempt, from 1; it grows when an attempt that had its go ends.
    attempt = models.PositiveSmallIntegerField(default=1)
    failures = models.PositiveSmallIntegerField(default=0)
    lease_losses = models.PositiveSmallIntegerField(default=0)
    lease_owner = models.UUIDField(null=True)
    fence = models.BigIntegerField(default=0)
    created_at = models.DateTimeField(db_default=Now())
    placed_at = models.DateTimeField(null=True)
    leased_at = models.DateTimeField(null=True)
    prepared_at = models.DateTimeField(null=True)
    go_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)
    skip_reason = models.CharField(max_length=32, default="")
    outcome = models.CharField(max_length=32, default="")
    exit_code = models.IntegerField(null=True)

    class Meta:
        db_table = "runs"
        constraints = [
            models.UniqueConstraint(
                fields=["job", "scheduled_for", "manual_key"], name="run_occurrence_once"
            ),
            models.CheckConstraint(
                condition=models.Q(status__in=sorted(RunStatus)), name="run_status_known"
            ),
            models.CheckConstraint(
                condition=models.Q(trigger__in=sorted(Trigger)), name="run_trigger_known"
            ),
            models.CheckConstraint(
                condition=models.Q(status__in=sorted(FINAL), finished_at__isnull=False)
                | (~models.Q(status__in=sorted(FINAL)) & models.Q(finished_at=None)),
                name="run_final_is_finished",
            ),
            models.CheckConstraint(
                condition=~models.Q(status__in=["leased", "running"])
                | models.Q(lease_owner__isnull=False, fence__gt=0),
                name="run_held_has_owner_and_fence",
            ),
            models.CheckConstraint(
                condition=~models.Q(status="blocked") | models.Q(lease_owner=None),
                name="run_blocked_holds_nothing",
            ),
            models.CheckConstraint(
                condition=~models.Q(status="running") | models.Q(go_at__isnull=False),
                name="run_running_had_its_go",
            ),
            models.CheckConstraint(
                condition=~models.Q(status="skipped") | ~models.Q(skip_reason=""),
                name="run_skip_says_why",
            ),
            models.CheckConstraint(
                condition=~models.Q(skip_reason="replaced") | models.Q(replaced_by__isnull=False),
                name="run_replaced_says_by",
            ),
        ]
        indexes = [
            # Dispatcher: unplaced runs of a tenant (lease_owner null), each lane by ready_at:
            # behind an outage there may be 100,000 to catch up, and the live ones must be found
            # without reading them. Worker and reaper: the runs of a session.
            # `status` is in no index, so lease and go are HOT.
            models.Index(
                "lease_owner",
                "tenant",
                LANE,
                "ready_at",
                name="runs_active",
                condition=models.Q(finished_at=None),
            ),
            # Lists of a tenant's runs, newest first.
            models.Index(
                fields=["tenant", "-scheduled_for", "-run_id"],
                name="runs_by_tenant",
            ),
            # Dead letters of a tenant, newest first, among the few runs that had any trouble. Only
            # columns that no lease or go writes: in an index, `status` would cost those their HOT.
            models.Index(
                fields=["tenant", "-scheduled_for", "-run_id"],
                name="runs_in_trouble",
                condition=HAD_TROUBLE,
            ),
        ]

    def __str__(self) -> str:
        return str(self.run_id)


class RunAttempt(models.Model):
    """One try of a run on one worker. Key: (run_id, scheduled_for, attempt)."""

    run_id = models.UUIDField(primary_key=True)
    scheduled_for = models.DateTimeField()
    attempt = models.PositiveSmallIntegerField()
    fence = models.BigIntegerField()
    session_id = models.UUIDField()
    node = models.CharField(max_length=255)
    placed_at = models.DateTimeField(null=True)
    leased_at = models.DateTimeField(null=True)
    prepared_at = models.DateTimeField(null=True)
    # Null when the container could not even be made: the attempt ended before its go.
    go_at = models.DateTimeField(null=True)
    # By the engine's clock.
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    # When the database learned of the end; null while the attempt goes on.
    ended_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=32, default="")
    exit_code = models.IntegerField(null=True)
    message = models.TextField(default="")
    image_digest = models.CharField(max_length=255, default="")

    class Meta:
        db_table = "run_attempts"
        constraints = [
            models.UniqueConstraint(
                fields=["run_id", "scheduled_for", "attempt"], name="run_attempt_once"
            )
        ]


class RunOutput(models.Model):
    """The tail of what an attempt printed. Key: (run_id, scheduled_for, attempt)."""

    run_id = models.UUIDField(primary_key=True)
    scheduled_for = models.DateTimeField()
    attempt = models.PositiveSmallIntegerField()
    tail = models.BinaryField()
    truncated = models.BooleanField(default=False)

    class Meta:
        db_table = "run_outputs"
        constraints = [
            models.UniqueConstraint(
                fields=["run_id", "scheduled_for", "attempt"], name="run_output_once"
            )
        ]


class JobGuard(models.Model):
    """Who may run of a job whose runs must not overlap; no row is needed for overlap = allow."""

    job_id = models.UUIDField(primary_key=True)
    holder_run_id = models.UUIDField(null=True)
    fence = models.BigIntegerField(default=0)

    class Meta:
        db_table = "job_guards"


class ShardLease(models.Model):
    """Which scheduler process plans which slice of the jobs, and until when."""

    shard = models.PositiveSmallIntegerField(primary_key=True)
    owner = models.UUIDField(null=True)
    term = models.BigIntegerField(default=0)
    expires_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "shard_leases"


class SchedulerProcess(models.Model):
    """A living scheduler process, so that the others leave it its share of the shards."""

    owner = models.UUIDField(primary_key=True)
    node = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    started_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()

    class Meta:
        db_table = "scheduler_processes"

    def __str__(self) -> str:
        return f"{self.node}:{self.pid}"


class OutboxMessage(models.Model):
    """Something to tell a tenant, written in the transaction that caused it.

    `sent_at`: when it was fanned out to those who want it. `message_id` is what receivers know it
    by: the same over all attempts and redeliveries.
    """

    message_id = models.UUIDField(db_default=RandomUUID(), editable=False)
    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.CASCADE)
    # Set for what goes to this endpoint alone, such as a ping.
    webhook_id = models.UUIDField(null=True)
    event = models.CharField(max_length=64)
    run_id = models.UUIDField(null=True)
    job_id = models.UUIDField(null=True)
    payload = models.JSONField()
    created_at = models.DateTimeField(db_default=Now())
    sent_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "outbox"
        indexes = [
            # The notifier takes unsent messages in order.
            models.Index(fields=["id"], name="outbox_unsent", condition=models.Q(sent_at=None)),
            # purge_outbox: the oldest first.
            models.Index(fields=["created_at"], name="outbox_by_age"),
        ]
        constraints = [
            # A run ends once, and is late once, whoever notices it first: its worker or the duty.
            models.UniqueConstraint(
                fields=["run_id", "event"],
                name="outbox_run_event_once",
                condition=models.Q(run_id__isnull=False),
            )
        ]


class RunEvent(models.Model):
    """An exceptional event of a run: stale fence, lease lost, hand-back… not its normal course."""

    run_id = models.UUIDField()
    scheduled_for = models.DateTimeField()
    at = models.DateTimeField(db_default=Now())
    kind = models.CharField(max_length=32)
    attempt = models.PositiveSmallIntegerField(null=True)
    fence = models.BigIntegerField(null=True)
    session_id = models.UUIDField(null=True)
    detail = models.JSONField(default=dict)

    class Meta:
        db_table = "run_events"
        indexes = [models.Index(fields=["run_id", "at"], name="run_events_by_run")]
