"""Worker sessions in the console: who is there, until when, and with what in hand."""

from typing import Any

from django.contrib import admin
from django.contrib.admin import SimpleListFilter
from django.db.models import (
    BooleanField,
    Count,
    ExpressionWrapper,
    IntegerField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
)
from django.db.models.functions import Coalesce, Now
from django.http import HttpRequest
from django.urls import reverse
from django.utils.safestring import SafeString

from runs.models import Run
from scheduler_project.lib.admin_pages import (
    ReadOnlyAdmin,
    code,
    instant_column,
    instant_text,
    label_column,
    link,
    unbroken,
)
from workers.models import WorkerSession

_MOST_RUNS = 200
_COLOURS = {
    "open": "success",
    "draining": "warning",
    "cordoned": "warning",
    "not accepting": "warning",
    "lease ended": "danger",
    "ended": "info",
}


class LifeFilter(SimpleListFilter):
    """Sessions that are open (the usual list, which has an index), or all of the past."""

    title = "life"
    parameter_name = "life"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("ended", "Ended")]

    def choices(self, changelist: Any) -> Any:
        for choice in super().choices(changelist):
            yield {**choice, "display": "Open"} if choice["display"] == "All" else choice

    def queryset(
        self, request: HttpRequest, queryset: QuerySet[WorkerSession]
    ) -> QuerySet[WorkerSession]:
        return queryset.filter(ended_at__isnull=self.value() != "ended")


@admin.register(WorkerSession)
class WorkerSessionAdmin(ReadOnlyAdmin):
    """One row a life of a worker process."""

    list_display = (
        "name_text", "node", "state", "slots_text", "region", "lease_end", "seen", "started"
    )  # fmt: skip
    list_filter = (LifeFilter,)
    ordering = ("-started_at", "session_id")
    search_fields = ("node", "celery_name")
    fieldsets = (
        (
            None,
            {
                "fields": (
                    ("id_text", "state"),
                    ("celery_name", "node"),
                    ("pid", "queue_text"),
                    ("region", "tier_list"),
                    ("slots_text", "prepared_limit"),
                )
            },
        ),
        (
            "Lease and health",
            {
                "fields": (
                    ("lease_end", "seen"),
                    ("started", "ended"),
                    ("draining", "cordoned"),
                    ("accepting", "not_accepting_reason"),
                )
            },
        ),
    )
    change_form_outer_after_template = "admin/workers_session_runs.html"
    lease_end = instant_column("lease_expires_at", "lease until")
    seen = instant_column("last_seen_at", "last seen")
    started = instant_column("started_at", "started")
    ended = instant_column("ended_at", "ended")

    def get_queryset(self, request: HttpRequest) -> QuerySet[WorkerSession]:
        """With the number of runs under way, and whether the database's clock says it is live."""
        sessions: QuerySet[WorkerSession] = super().get_queryset(request)
        running = (
            Run.objects.filter(
                lease_owner=OuterRef("session_id"), finished_at=None, status="running"
            )
            .order_by()
            .values("lease_owner")
            .annotate(number=Count("*"))
            .values("number")
        )
        is_live = ExpressionWrapper(Q(lease_expires_at__gt=Now()), output_field=BooleanField())
        return sessions.annotate(
            running=Coalesce(Subquery(running, output_field=IntegerField()), 0),
            lease_is_live=is_live,
        )

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """The session's page, with the runs that it holds."""
        session = self.get_object(request, object_id) if object_id else None
        context = {"held_runs": _held_runs(session)} if session else {}
        return super().changeform_view(
            request, object_id, form_url, {**context, **(extra_context or {})}
        )

    @admin.display(description="session id")
    def id_text(self, session: WorkerSession) -> SafeString:
        return code(session.session_id)

    @admin.display(description="worker")
    def name_text(self, session: WorkerSession) -> SafeString:
        return unbroken(session.celery_name)

    @admin.display(description="queue")
    def queue_text(self, session: WorkerSession) -> SafeString:
        return code(session.queue)

    @admin.display(description="tiers")
    def tier_list(self, session: WorkerSession) -> str:
        return ", ".join(session.tiers)

    @admin.display(description="slots used")
    def slots_text(self, session: WorkerSession) -> str:
        return f"{session.running} of {session.slots}"  # type: ignore[attr-defined]

    @label_column("state", _COLOURS)
    def state(self, session: WorkerSession) -> str:
        """The first that applies of what an operator should know."""
        if session.ended_at:
            return "ended"
        if not session.lease_is_live:  # type: ignore[attr-defined]
            return "lease ended"
        if session.draining:
            return "draining"
        if session.cordoned:
            return "cordoned"
        return "open" if session.accepting else "not accepting"


def _held_runs(session: Any) -> dict[str, Any]:
    runs = (
        Run.objects.filter(lease_owner=session.session_id, finished_at=None)
        .order_by("ready_at", "run_id")
        .prefetch_related("job", "tenant")[:_MOST_RUNS]
    )
    return {
        "headers": ["Run", "Job", "Tenant", "Status", "Due", "Attempt", "Fence"],
        "rows": [
            (
                link(reverse("admin:runs_run_change", args=[run.run_id]), run.run_id),
                link(reverse("admin:jobs_job_change", args=[run.job_id]), run.job),
                run.tenant,
                run.status,
                instant_text(run.due_at),
                run.attempt,
                run.fence,
            )
            for run in runs
        ],
    }
