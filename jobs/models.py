"""What is to run and when: jobs, their versions, and the narrow cursors that the planner moves."""

import uuid

from django.db import models
from django.db.models.functions import Now

from tenants.models import IsolationTier, Tenant


class Job(models.Model):
    """What a customer wants run, and when. Wide and cold: the planner's hot columns are apart."""

    class Overlap(models.TextChoices):
        SKIP = "skip"
        QUEUE = "queue"
        ALLOW = "allow"
        REPLACE = "replace"

    job_id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="jobs")
    name = models.CharField(max_length=200, blank=True, default="")
    description = models.TextField(blank=True, default="")
    labels = models.JSONField(default=dict, blank=True)
    # {"cron", "time_zone"} | {"at"} | {"every"}: as jobs.domain.schedule.schedule_to_json gives it.
    schedule = models.JSONField()
    start_at = models.DateTimeField(null=True, blank=True)
    end_at = models.DateTimeField(null=True, blank=True)
    dst = models.JSONField(default=dict, blank=True)
    flexible_window_s = models.PositiveIntegerField(default=0)
    misfire = models.JSONField(default=dict, blank=True)
    overlap = models.CharField(max_length=16, choices=Overlap.choices, default=Overlap.SKIP)
    queue_limit = models.PositiveIntegerField(default=10)
    # {"image", "args"?, "env"?, "timeout_s", "resources": {"cpu", "memory_mb"}}
    task = models.JSONField()
    # {"max_attempts", "backoff", "base_s", "max_s", "jitter", "exit_codes"}
    retry = models.JSONField(default=dict, blank=True)
    region = models.CharField(max_length=64, default="default")
    tier = models.CharField(
        max_length=32, choices=IsolationTier.choices, default=IsolationTier.CONTAINER
    )
    enabled = models.BooleanField(default=True)
    # As jobs.domain.timing.pause_to_json gives it; {"reason", "by"} for a job that the planner set
    # aside because it can't be planned (it is switched off, then).
    pause = models.JSONField(null=True, blank=True)
    # A run that starts later than this after its due time is told as late; null: never.
    late_after_s = models.PositiveIntegerField(null=True, blank=True)
    # So many failed runs in a row pause the job; null: never.
    auto_pause_after = models.PositiveIntegerField(null=True, blank=True)
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        db_table = "jobs"
        constraints = [
            models.CheckConstraint(condition=models.Q(version__gte=1), name="job_version_positive"),
            models.CheckConstraint(
                condition=models.Q(overlap__in=["skip", "queue", "allow", "replace"]),
                name="job_overlap_known",
            ),
        ]
        indexes = [
            # Job lists of a tenant: keyset on (created_at, job_id), newest first.
            models.Index(
                fields=["tenant", "-created_at", "-job_id"],
                name="jobs_by_tenant",
                condition=models.Q(deleted_at=None),
            )
        ]

    def __str__(self) -> str:
        return self.name or str(self.job_id)


class ScheduleCursor(models.Model):
    """Where a job stands in time. Narrow and hot: the only row that planning an occurrence writes.

    `next_run_at` is the next nominal instant not yet planned; null when there is none.
    `planned_through` is the last instant up to which occurrences are decided; it only grows, so
    that neither purge nor backfill runs an occurrence again.
    """

    job = models.OneToOneField(Job, on_delete=models.CASCADE, primary_key=True)
    shard = models.PositiveSmallIntegerField()
    next_run_at = models.DateTimeField(null=True)
    planned_through = models.DateTimeField(null=True)
    # When the job's pause ends by itself; null when it isn't paused, or until somebody ends it.
    paused_until = models.DateTimeField(null=True)
    # Local wall time of the last occurrence with its fold, as jobs.domain.schedule writes it: a
    # tzdata upgrade must not repeat a local day.
    last_wall_time = models.CharField(max_length=40, default="")
    tzdata = models.CharField(max_length=16, default="")

    class Meta:
        db_table = "schedule_cursors"
        indexes = [
            # claim_due_cursors: the due cursors of the shards a planner holds, oldest first.
            models.Index(
                fields=["next_run_at", "shard"],
                name="cursors_due",
                condition=models.Q(next_run_at__isnull=False),
            ),
            # end_pauses_once: the pauses that are over.
            models.Index(
                fields=["paused_until"],
                name="cursors_paused",
                condition=models.Q(paused_until__isnull=False),
            ),
        ]


class JobVersion(models.Model):
    """What a job said from `effective_from` on: what history is verified against."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="versions")
    version = models.PositiveIntegerField()
    schedule = models.JSONField()
    # start_at, end_at, dst, misfire, overlap, queue_limit, flexible_window_s, pause, retry,
    # late_after_s, auto_pause_after
    policies = models.JSONField()
    task = models.JSONField()
    enabled = models.BooleanField()
    deleted = models.BooleanField(default=False)
    tzdata = models.CharField(max_length=16)
    effective_from = models.DateTimeField()
    changed_by = models.CharField(max_length=200)
    cause = models.CharField(max_length=200, default="")

    class Meta:
        db_table = "job_versions"
        constraints = [models.UniqueConstraint(fields=["job", "version"], name="job_version_once")]


class MissedSpan(models.Model):
    """A stretch of occurrences that were counted and not made into runs, with the reason."""

    class Reason(models.TextChoices):
        OUTAGE = "outage"
        PAUSED = "paused"
        BEYOND_CATCH_UP = "beyond_catch_up"
        DEADLINE = "deadline"

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="missed_spans")
    # First and last nominal instant of the span, both included.
    from_at = models.DateTimeField()
    to_at = models.DateTimeField()
    count = models.PositiveIntegerField()
    reason = models.CharField(max_length=32, choices=Reason.choices)
    recorded_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "missed_spans"
        constraints = [
            models.UniqueConstraint(fields=["job", "from_at"], name="missed_span_once"),
            models.CheckConstraint(
                condition=models.Q(to_at__gte=models.F("from_at")), name="missed_span_ordered"
            ),
        ]
