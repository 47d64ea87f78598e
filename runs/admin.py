"""Runs in the console, with their attempts, output and events; and running and cancelling them.

Owns the rule that every look-up gives both columns of the key, and that every list is bounded: by a
tenant, a job, the runs under way, or a day.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin import SimpleListFilter
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import AutocompleteSelectFilter, DropdownFilter

import runs.webhook_admin  # noqa: F401 – it registers its pages
from jobs.errors import JobNotFoundError
from jobs.models import Job
from runs.domain.run_id import make_run_id, scheduled_for_of
from runs.domain.state import FINAL, RunStatus
from runs.errors import RunIsFinalError, RunIsNotFinalError, RunNotFoundError
from runs.models import Run, RunAttempt, RunEvent
from runs.partitions import database_today
from runs.replays import run_replay
from runs.selectors import RunDetail, run_detail
from runs.services import run_cancel, run_now
from scheduler_project.lib.admin_pages import (
    ReadOnlyAdmin,
    ask_first,
    clock_text,
    code,
    instant_column,
    instant_text,
    label_column,
    link,
    page_action,
    seconds_text,
    tell,
    unbroken,
)

_TENANT = "tenant__tenant_id__exact"
# Days that the filter offers: as many as are usually kept.
_DAYS_BACK = 30
_MOST_EVENTS = 100
_COLOURS = {
    "queued": "info",
    "leased": "info",
    "running": "primary",
    "blocked": "warning",
    "succeeded": "success",
    "failed": "danger",
    "cancelled": "warning",
    "skipped": "warning",
}


class StatusFilter(DropdownFilter):  # type: ignore[misc]
    """One status; those under way have an index of their own."""

    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(status.value, status.value) for status in RunStatus]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Run]) -> QuerySet[Run]:
        if not self.value():
            return queryset
        runs = queryset.filter(status=self.value())
        # Said twice, so that the database sees that its index of unfinished runs will do.
        return runs if self.value() in FINAL else runs.filter(finished_at=None)


class DayFilter(DropdownFilter):  # type: ignore[misc]
    """The day (UTC) of the nominal instant; without any other bound from yesterday on."""

    title = "day"
    parameter_name = "day"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        today = database_today(connection)
        days = (today - timedelta(days=back) for back in range(-1, _DAYS_BACK + 1))
        return [(day.isoformat(), _day_text(day, today)) for day in days]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Run]) -> QuerySet[Run]:
        if self.value():
            try:
                day = date.fromisoformat(self.value())
            except ValueError:
                return queryset.none()
            begin = datetime.combine(day, time(), UTC)
            return queryset.filter(_from(begin), scheduled_for__lt=begin + timedelta(days=1))
        if _is_bounded(request):
            return queryset
        yesterday = database_today(connection) - timedelta(days=1)
        return queryset.filter(_from(datetime.combine(yesterday, time(), UTC)))


class JobFilter(SimpleListFilter):
    """The job that a link named; there is no list of all jobs to choose from."""

    title = "job"
    parameter_name = "job"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        text = request.GET.get("job", "")
        job_id = _uuid(text)
        job = Job.objects.filter(job_id=job_id).first() if job_id else None
        return [(text, str(job or text))] if text else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Run]) -> QuerySet[Run]:
        if not self.value():
            return queryset
        job_id = _uuid(self.value() or "")
        return queryset.filter(job_id=job_id) if job_id else queryset.none()


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    """Runs, newest first; a run's page tells its story."""

    list_display = (
        "id_link", "scheduled", "job_link", "tenant_link", "state", "trigger", "attempt", "lag",
        "result",
    )  # fmt: skip
    list_filter = (StatusFilter, DayFilter, ("tenant", AutocompleteSelectFilter), JobFilter)
    search_fields = ("run_id",)
    search_help_text = "The id of a run or of a job"
    fieldsets = (
        (
            None,
            {
                "fields": (
                    ("id_text", "state"),
                    ("job_link", "tenant_link"),
                    ("trigger", "job_version"),
                    ("waits_for", "session_link"),
                    ("outcome", "exit_code"),
                    ("skip_reason", "cancel_requested"),
                    ("replay_of_link", "replayed_by_link"),
                    "replaced_by_link",
                )
            },
        ),
        (
            "Times of the current or last attempt",
            {
                "fields": (
                    ("scheduled", "due"),
                    ("ready", "placed"),
                    ("leased", "prepared"),
                    ("go", "started"),
                    ("finished", "lag_text"),
                )
            },
        ),
        (
            "Counters",
            {"fields": (("attempt", "failures"), ("lease_losses", "fence"), ("region", "tier"))},
        ),
    )
    actions = ("cancel_selected", "replay_selected")
    actions_detail = ("cancel", "replay")
    change_form_outer_after_template = "admin/runs_run_story.html"
    scheduled = instant_column("scheduled_for")
    due = instant_column("due_at", "due")
    ready = instant_column("ready_at", "ready")
    placed = instant_column("placed_at", "placed")
    leased = instant_column("leased_at", "leased")
    prepared = instant_column("prepared_at", "prepared")
    go = instant_column("go_at", "go")
    started = instant_column("started_at", "started (engine's clock)")
    finished = instant_column("finished_at", "finished")
    cancel_requested = instant_column("cancel_requested_at", "cancel requested")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        """With job and tenant by queries of their own, so that one index orders the list.

        A foreign key among the columns would make Django join it: hence the links.
        """
        runs: QuerySet[Run] = super().get_queryset(request)
        return runs.prefetch_related("job", "tenant")

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Run | None:
        """The run of this id, looked for in the one partition that its id names."""
        run_id = _uuid(object_id)
        found = self._find(request, [run_id]) if run_id else []
        return found[0] if found else None

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Newest first: a run id begins with its nominal instant, so either order is the same.

        Which one is asked for decides which index serves the list.
        """
        if request.GET.get(_TENANT) or request.GET.get("job"):
            return ("-scheduled_for", "-run_id")
        return ("-run_id",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Run], search_term: str
    ) -> tuple[QuerySet[Run], bool]:
        """By the id of a run (they are of version 7) or of a job."""
        if not search_term:
            return queryset, False
        wanted = _uuid(search_term)
        if wanted is None:
            return queryset.none(), False
        if wanted.version == 7:
            return queryset.filter(run_id=wanted, scheduled_for=scheduled_for_of(wanted)), False
        return queryset.filter(job_id=wanted), False

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """The run's page, with its attempts, their output, and its events."""
        run = self.get_object(request, object_id) if object_id else None
        context = _story(run) if run else {}
        return super().changeform_view(
            request, object_id, form_url, {**context, **(extra_context or {})}
        )

    # --- actions ------------------------------------------------------------------------------

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Who may run a job now: Django's `add` permission."""
        return bool(request.user.has_perm("runs.add_run"))

    def has_replay_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        """Who may run something again: who may run it now."""
        return self.has_add_permission(request)

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Ask whether to run the jobs that the address names, and run them."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        wanted = [job_id for text in request.GET.getlist("job") if (job_id := _uuid(text))]
        jobs = list(Job.objects.filter(job_id__in=wanted).select_related("tenant"))
        if not jobs:
            back = reverse("admin:jobs_job_changelist")
            return tell(request, [], ["Choose a job first, then Run now"], back)
        back = reverse("admin:runs_run_changelist", query={"job": str(jobs[0].job_id)})
        question = ask_first(
            request,
            self,
            title="Run now",
            sentence="A run is made that is due at once; it obeys the job's overlap policy.",
            back=reverse("admin:jobs_job_change", args=[jobs[0].job_id]),
            rows=jobs,
        )
        return question or self._run_now(request, jobs, back)

    def _run_now(self, request: HttpRequest, jobs: Sequence[Job], back: str) -> HttpResponse:
        done, refused = [], []
        for job in jobs:
            try:
                run = run_now(job.tenant, job.job_id)
            except JobNotFoundError:
                refused.append(f"{job} is deleted")
            else:
                self.log_addition(request, run, "Run now")
                done.append(f"Run {run.run_id} of {job} is queued")
        return tell(request, done, refused, back)

    @admin.action(description="Cancel", permissions=["act"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Run]) -> HttpResponse | None:
        """Cancel the chosen runs."""
        return self._cancel(
            request, self._chosen(request), request.get_full_path(), "cancel_selected"
        )

    @page_action("Cancel", "cancel", "act")
    def cancel(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Cancel the run of this page."""
        run = self.get_object(request, object_id)
        if run is None:
            raise Http404
        return self._cancel(request, [run], reverse("admin:runs_run_change", args=[object_id]))

    def _cancel(
        self, request: HttpRequest, runs: Sequence[Run], back: str, name: str = ""
    ) -> HttpResponse:
        question = ask_first(
            request,
            self,
            title="Cancel runs",
            sentence="Runs that wait are cancelled at once; the containers of running ones are"
            " stopped. It can't be undone.",
            back=back,
            rows=runs,
            action=name,
        )
        if question is not None:
            return question
        done, refused = [], []
        for run in runs:
            try:
                cancelled = run_cancel(run.tenant, run.run_id)
            except RunNotFoundError:
                refused.append(f"Run {run} is gone")
            except RunIsFinalError as error:
                refused.append(f"Run {run} is {error.status} already")
            else:
                self.log_change(request, run, "Cancelled")
                is_over = cancelled.status == RunStatus.CANCELLED
                done.append(f"Run {run} is {'cancelled' if is_over else 'being stopped'}")
        return tell(request, done, refused, back)

    @admin.action(description="Replay", permissions=["replay"])
    def replay_selected(self, request: HttpRequest, queryset: QuerySet[Run]) -> HttpResponse | None:
        """Run the chosen runs again."""
        return self._replay(
            request, self._chosen(request), request.get_full_path(), "replay_selected"
        )

    @page_action("Replay", "replay", "replay")
    def replay(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Run the run of this page again."""
        run = self.get_object(request, object_id)
        if run is None:
            raise Http404
        return self._replay(request, [run], reverse("admin:runs_run_change", args=[object_id]))

    def _replay(
        self, request: HttpRequest, runs: Sequence[Run], back: str, name: str = ""
    ) -> HttpResponse:
        question = ask_first(
            request,
            self,
            title="Replay runs",
            sentence="Of each a new run is made that is due at once, with the job's task as it is"
            " now. The old ones stay as they are.",
            back=back,
            rows=runs,
            action=name,
        )
        if question is not None:
            return question
        done, refused = [], []
        for run in runs:
            try:
                replayed = run_replay(run.tenant, run.run_id)
            except RunNotFoundError:
                refused.append(f"Run {run} is gone")
            except RunIsNotFinalError as error:
                refused.append(f"Run {run} is {error.status}: it has not ended")
            except JobNotFoundError:
                refused.append(f"The job of run {run} is deleted")
            else:
                self.log_addition(request, replayed, f"Replay of {run}")
                done.append(f"Run {replayed.run_id}, a replay of {run}, is queued")
        return tell(request, done, refused, back)

    def _chosen(self, request: HttpRequest) -> list[Run]:
        """The runs ticked in the list.

        Not from the action's queryset: it knows one column of their keys and would visit every
        partition.
        """
        chosen = [run_id for text in request.POST.getlist(ACTION_CHECKBOX_NAME)
                  if (run_id := _uuid(text))]  # fmt: skip
        return self._find(request, chosen)

    def _find(self, request: HttpRequest, run_ids: Sequence[UUID]) -> list[Run]:
        """The runs of these ids, by both columns of their keys."""
        instants = [scheduled_for_of(run_id) for run_id in run_ids]
        runs = self.get_queryset(request)
        return list(runs.filter(run_id__in=run_ids, scheduled_for__in=instants))

    # --- columns ------------------------------------------------------------------------------

    @admin.display(description="run")
    def id_link(self, run: Run) -> SafeString:
        return unbroken(code(run.run_id))

    @admin.display(description="run id")
    def id_text(self, run: Run) -> SafeString:
        return code(run.run_id)

    @label_column("status", _COLOURS)
    def state(self, run: Run) -> str:
        return run.status

    @admin.display(description="job")
    def job_link(self, run: Run) -> SafeString:
        return link(reverse("admin:jobs_job_change", args=[run.job_id]), run.job)

    @admin.display(description="tenant")
    def tenant_link(self, run: Run) -> SafeString:
        return link(reverse("admin:tenants_tenant_change", args=[run.tenant_id]), run.tenant)

    @admin.display(description="replay of")
    def replay_of_link(self, run: Run) -> SafeString | str:
        return _run_link(run.replay_of)

    @admin.display(description="replayed by")
    def replayed_by_link(self, run: Run) -> SafeString | str:
        return _run_link(run.replayed_by)

    @admin.display(description="replaced by")
    def replaced_by_link(self, run: Run) -> SafeString | str:
        return _run_link(run.replaced_by)

    @admin.display(description="dispatch lag")
    def lag(self, run: Run) -> str:
        """Of the first attempt only: the row keeps the instants of the last one."""
        if run.started_at is None or run.attempt != 1:
            return ""
        return seconds_text(run.started_at - run.due_at)

    @admin.display(description="result")
    def result(self, run: Run) -> str:
        if run.status == RunStatus.SKIPPED:
            return run.skip_reason
        exit_code = "" if run.exit_code is None else f" ({run.exit_code})"
        return f"{run.outcome}{exit_code}"

    @admin.display(description="waits for")
    def waits_for(self, run: Run) -> str:
        waiting = _detail(run).waiting_for
        if waiting is None:
            return ""
        until = f" until {instant_text(waiting.until)}" if waiting.until else ""
        behind = f" ({waiting.run_id})" if waiting.run_id else ""
        return f"{waiting.reason.replace('_', ' ')}{until}{behind}"

    @admin.display(description="worker session")
    def session_link(self, run: Run) -> SafeString | str:
        if run.lease_owner is None:
            return ""
        lease = _detail(run)
        until = (
            f" on {lease.node}, lease until {instant_text(lease.lease_expires_at)}"
            if lease.node
            else ""
        )
        url = reverse("admin:workers_workersession_change", args=[run.lease_owner])
        return link(url, f"{run.lease_owner}{until}")

    @admin.display(description="dispatch lag")
    def lag_text(self, run: Run) -> str:
        lag = _detail(run).lag
        if lag is None:
            return ""
        stages = ", ".join(f"{stage} {value:.3f}" for stage, value in lag.stages_s.items())
        return f"{seconds_text(lag.total_s)} = {stages}"


def _run_link(run_id: UUID | None) -> SafeString | str:
    return "" if run_id is None else link(reverse("admin:runs_run_change", args=[run_id]), run_id)


def _detail(run: Run) -> RunDetail:
    """What the selector knows about the run, read once a page."""
    detail = getattr(run, "detail", None) or run_detail(run.tenant, run.run_id)
    if detail is None:  # withdrawn by an edit between two reads
        raise Http404
    run.detail = detail  # type: ignore[attr-defined]
    assert isinstance(detail, RunDetail)
    return detail


def _story(run: Run) -> dict[str, Any]:
    detail = _detail(run)
    events = RunEvent.objects.filter(run_id=run.run_id).order_by("at")[:_MOST_EVENTS]
    return {
        "attempts": {
            "headers": [
                "Attempt", "Fence", "Node", "Placed (UTC)", "Leased", "Prepared", "Go", "Started",
                "Finished", "Outcome", "Exit code", "Message",
            ],
            "rows": [_attempt_row(attempt) for attempt in detail.attempts],
        },
        "outputs": sorted(detail.outputs.items()),
        "events": {
            "headers": ["At", "Event", "Attempt", "Fence", "Session"],
            "rows": [
                (
                    instant_text(event.at),
                    event.kind.replace("_", " "),
                    event.attempt,
                    event.fence,
                    code(event.session_id) if event.session_id else "",
                )
                for event in events
            ],
        },
    }  # fmt: skip


def _attempt_row(attempt: RunAttempt) -> tuple[Any, ...]:
    instants = (
        attempt.placed_at,
        attempt.leased_at,
        attempt.prepared_at,
        attempt.go_at,
        attempt.started_at,
        attempt.finished_at,
    )
    day = attempt.scheduled_for.astimezone(UTC).date()
    return (
        attempt.attempt,
        attempt.fence,
        attempt.node,
        *(unbroken(clock_text(instant, day)) for instant in instants),
        attempt.outcome.replace("_", " ") or "under way",
        attempt.exit_code,
        attempt.message,
    )


def _is_bounded(request: HttpRequest) -> bool:
    """Whether an index bounds the list without a day.

    A tenant's runs of one final status are not: none of them may be recent, and the database would
    walk through all that the tenant ever had.
    """
    if request.GET.get("job") or request.GET.get("q"):
        return True
    status = request.GET.get("status")
    if not status:
        return bool(request.GET.get(_TENANT))
    return status not in FINAL


def _from(begin: datetime) -> Q:
    """Runs from `begin` on: by the partitions' column, and by ids, in whose order they are read."""
    return Q(scheduled_for__gte=begin, run_id__gte=make_run_id(begin, bytes(10)))


def _day_text(day: date, today: date) -> str:
    names = {1: "tomorrow", 0: "today", -1: "yesterday"}
    name = names.get((day - today).days)
    return f"{day} ({name})" if name else day.isoformat()


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text.strip())
    except ValueError:
        return None
