"""Who our customers are, what they may use, and the keys by which they prove who they are."""

import uuid

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now


class IsolationTier(models.TextChoices):
    """How strongly a container is held apart from the machine, weakest first."""

    CONTAINER = "container"
    SANDBOX = "sandbox"


class Tenant(models.Model):
    """A customer: the unit of ownership, fairness and quota."""

    tenant_id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=200, unique=True)
    # Share of slots relative to other tenants that have work (architecture §1, rule 7).
    weight = models.PositiveIntegerField(default=100)
    max_concurrent_runs = models.PositiveIntegerField(default=100)
    max_jobs = models.PositiveIntegerField(default=10_000)
    max_runs_per_hour = models.PositiveIntegerField(default=100_000)
    max_timeout_s = models.PositiveIntegerField(default=86_400)
    min_interval_s = models.PositiveIntegerField(default=60)
    max_cpu = models.DecimalField(max_digits=6, decimal_places=2, default=2)
    max_memory_mb = models.PositiveIntegerField(default=2_048)
    isolation_floor = models.CharField(
        max_length=32, choices=IsolationTier.choices, default=IsolationTier.CONTAINER
    )
    # Prefixes of image references that may run; an empty list allows every image.
    image_allow_list = ArrayField(models.CharField(max_length=255), default=list, blank=True)
    allow_root = models.BooleanField(default=False)
    # Who is written to when a webhook is switched off or a job pauses itself; "": nobody. Set by
    # operators: an address that anybody could enter would make us send mail to strangers.
    contact_email = models.EmailField(blank=True, default="", db_default="")
    suspended_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "tenants"
        ordering = ["name"]
        constraints = [
            # A weight of zero would divide by zero in the fair order and starve the tenant.
            models.CheckConstraint(condition=models.Q(weight__gte=1), name="tenant_weight_positive")
        ]

    def __str__(self) -> str:
        return self.name


class ApiKey(models.Model):
    """A credential of a tenant. Only its hash is stored; the key itself is shown once."""

    class Scope(models.TextChoices):
        READ = "read"
        WRITE = "write"
        ADMIN = "admin"

    api_key_id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=200)
    # The public part, by which a key is found; the secret part is compared by hash.
    prefix = models.CharField(max_length=16, unique=True, editable=False)
    key_hash = models.CharField(max_length=64, editable=False)
    scopes = ArrayField(models.CharField(max_length=16, choices=Scope.choices))
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        db_table = "api_keys"
        ordering = ["tenant", "name"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class IdempotencyKey(models.Model):
    """The answer to a request that changed something, for the copies of it that come later.

    Written in the transaction of the work itself: there is no answer without the work and no work
    without the answer. Read and written by tenants.idempotency alone.
    """

    pk = models.CompositePrimaryKey("tenant_id", "key")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, db_index=False)
    key = models.CharField(max_length=255)
    # Hashes of the address and of the canonical body (scheduler_project.lib.idempotency).
    route_hash = models.CharField(max_length=64)
    body_hash = models.CharField(max_length=64)
    # Null only inside the transaction that works on the request: nobody else ever sees that.
    status = models.PositiveSmallIntegerField(null=True)
    headers = models.JSONField(default=dict)
    body = models.TextField(default="")
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField()

    class Meta:
        db_table = "idempotency_keys"
        # purge_expired takes the oldest first.
        indexes = [models.Index(fields=["expires_at"], name="idempotency_keys_expiry")]
