"""Jobs in the console: what they say, when they come next, and switching them on and off."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin import SimpleListFilter
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import AutocompleteSelectFilter
from unfold.views import ChangeList

from jobs.domain.preview import describe, describe_occurrence
from jobs.domain.schedule import Schedule
from jobs.errors import JobError, JobNotFoundError
from jobs.models import Job, JobVersion, MissedSpan
from jobs.rows import schedule_of, shown_schedule
from jobs.selectors import shown_jobs
from jobs.services import job_set_enabled
from scheduler_project.lib.admin_pages import (
    ReadOnlyAdmin,
    ask_first,
    code,
    instant_column,
    instant_text,
    label_column,
    link,
    page_action,
    tell,
)

_TENANT = "tenant__tenant_id__exact"
_NEXT_TIMES = 5
_HISTORY_ROWS = 20
_SENTENCES = {
    True: "Switched on, a job runs from its next occurrence after now; nothing is caught up.",
    False: "Switched off, planned runs are withdrawn and waiting ones are skipped; running ones go"
    " on.",
}


class StateFilter(SimpleListFilter):
    """Jobs that exist (the usual list), or those that are off or deleted."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("on", "On"), ("off", "Off"), ("deleted", "Deleted")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        if self.value() == "deleted":
            return queryset.filter(deleted_at__isnull=False)
        jobs = queryset.filter(deleted_at=None)
        return jobs if self.value() is None else jobs.filter(enabled=self.value() == "on")


class JobChangeList(ChangeList):  # type: ignore[misc]
    """The list with each job's next time; one query for the page."""

    result_list: Any

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        jobs: list[Job] = list(self.result_list)
        self.result_list = jobs
        for shown in shown_jobs(jobs):
            shown.job.next_shown_at = shown.next_run_at  # type: ignore[attr-defined]


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """Jobs are written through the API; here they are looked at and switched."""

    list_display = ("title", "tenant", "in_words", "state", "next_time", "created")
    list_filter = (StateFilter, ("tenant", AutocompleteSelectFilter))
    list_select_related = ("tenant", "schedulecursor")
    search_fields = ("name",)
    search_help_text = "A job's id; with a tenant chosen also a part of a name"
    fieldsets = (
        (None, {"fields": (("name", "id_text"), ("tenant", "state"), ("description", "runs"))}),
        ("When", {"fields": (("in_words", "schedule_text"), ("start", "end"), "overlap")}),
        ("Told", {"fields": (("late_after_s", "auto_pause_after"),)}),
        ("What", {"fields": ("task_text", "variables", "retry_text", ("region", "tier"))}),
        (
            "Record",
            {
                "fields": (
                    ("version", "pause_text"),
                    ("created", "updated"),
                    ("deleted", "label_list"),
                )
            },
        ),
    )
    actions = ("enable_selected", "disable_selected", "run_selected")
    actions_detail = ("run", "enable", "disable")
    change_form_outer_after_template = "admin/jobs_job_history.html"
    next_time = instant_column("next_shown_at", "next time")
    created = instant_column("created_at", "created")
    updated = instant_column("updated_at", "updated")
    deleted = instant_column("deleted_at", "deleted")
    start = instant_column("start_at", "starts")
    end = instant_column("end_at", "ends")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[JobChangeList]:
        """The list that knows next times."""
        return JobChangeList

    def has_run_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Who may run jobs now: those who may make runs."""
        return bool(request.user.has_perm("runs.add_run"))

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Newest first within a tenant; over all tenants in the key's order, which has an index."""
        return ("-created_at", "-job_id") if request.GET.get(_TENANT) else ("job_id",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        """By id; by name only within a tenant, because names have no index."""
        if job_id := _uuid(search_term):
            return queryset.filter(job_id=job_id), False
        if search_term and request.GET.get(_TENANT):
            return queryset.filter(name__icontains=search_term), False
        return (queryset.none() if search_term else queryset), False

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """The job's page, with its next times and its past."""
        job = self.get_object(request, object_id) if object_id else None
        context = _past_and_future(job) if job else {}
        return super().changeform_view(
            request, object_id, form_url, {**context, **(extra_context or {})}
        )

    @admin.action(description="Switch on", permissions=["act"])
    def enable_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Switch the chosen jobs on."""
        return self._switch(request, list(queryset), True, "", "enable_selected")

    @admin.action(description="Switch off", permissions=["act"])
    def disable_selected(
        self, request: HttpRequest, queryset: QuerySet[Job]
    ) -> HttpResponse | None:
        """Switch the chosen jobs off."""
        return self._switch(request, list(queryset), False, "", "disable_selected")

    @admin.action(description="Run now", permissions=["run"])
    def run_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse:
        """Run the chosen jobs now."""
        return _run_now_page(queryset.values_list("job_id", flat=True))

    @page_action("Run now", "run-now", "run")
    def run(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Run the job of this page now."""
        return _run_now_page([self._job(request, object_id).job_id])

    @page_action("Switch on", "enable", "act")
    def enable(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Switch the job of this page on."""
        return self._switch(request, [self._job(request, object_id)], True, object_id)

    @page_action("Switch off", "disable", "act")
    def disable(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Switch the job of this page off."""
        return self._switch(request, [self._job(request, object_id)], False, object_id)

    def _job(self, request: HttpRequest, object_id: str) -> Job:
        job = self.get_object(request, object_id)
        if job is None:
            raise Http404
        assert isinstance(job, Job)
        return job

    def _switch(
        self,
        request: HttpRequest,
        jobs: Sequence[Job],
        enabled: bool,
        object_id: str,
        name: str = "",
    ) -> HttpResponse:
        word = "on" if enabled else "off"
        back = (
            reverse("admin:jobs_job_change", args=[object_id])
            if object_id
            else request.get_full_path()
        )
        question = ask_first(
            request,
            self,
            title=f"Switch {word}",
            sentence=_SENTENCES[enabled],
            back=back,
            rows=jobs,
            action=name,
        )
        if question is not None:
            return question
        done, refused = [], []
        for job in jobs:
            try:
                job_set_enabled(job.tenant, job.job_id, enabled, changed_by=author(request))
            except JobNotFoundError:
                refused.append(f"{job} is deleted")
            except JobError as error:
                refused.append(f"{job} was not switched {word}: {error}")
            else:
                self.log_change(request, job, f"Switched {word}")
                done.append(f"{job} is {word}")
        return tell(request, done, refused, back)

    @admin.display(description="job")
    def title(self, job: Job) -> str:
        return str(job)

    @admin.display(description="job id")
    def id_text(self, job: Job) -> SafeString:
        return code(job.job_id)

    @label_column("state", {"on": "success", "off": "warning", "deleted": "danger"})
    def state(self, job: Job) -> str:
        if job.deleted_at:
            return "deleted"
        return "on" if job.enabled else "off"

    @admin.display(description="schedule")
    def in_words(self, job: Job) -> str:
        schedule = schedule_of(job)
        return describe(schedule) if schedule else "can't be read"

    @admin.display(description="as written")
    def schedule_text(self, job: Job) -> SafeString:
        return code(shown_schedule(job))

    @admin.display(description="task")
    def task_text(self, job: Job) -> SafeString:
        return code({name: value for name, value in job.task.items() if name != "env"})

    @admin.display(description="variables")
    def variables(self, job: Job) -> SafeString | str:
        """Names only: values are where customers keep their passwords."""
        names = ", ".join(sorted(job.task.get("env") or {}))
        return code(names) if names else ""

    @admin.display(description="retry")
    def retry_text(self, job: Job) -> SafeString:
        return code(job.retry)

    @admin.display(description="paused")
    def pause_text(self, job: Job) -> SafeString | str:
        return code(job.pause) if job.pause else ""

    @admin.display(description="labels")
    def label_list(self, job: Job) -> str:
        return ", ".join(f"{name}: {value}" for name, value in sorted(job.labels.items()))

    @admin.display(description="runs")
    def runs(self, job: Job) -> SafeString:
        url = reverse("admin:runs_run_changelist", query={"job": str(job.job_id)})
        return link(url, "Its runs")


def author(request: HttpRequest) -> str:
    """Who changed a job, as its versions record it."""
    return f"admin {request.user.get_username()}"


def _past_and_future(job: Job) -> dict[str, Any]:
    schedule = schedule_of(job)
    (shown,) = shown_jobs([job])
    times = shown.next_runs(_NEXT_TIMES) if schedule else []
    versions = JobVersion.objects.filter(job=job).order_by("-version")[:_HISTORY_ROWS]
    spans = MissedSpan.objects.filter(job=job).order_by("-from_at")[:_HISTORY_ROWS]
    return {
        "next_times": {
            "headers": ["UTC", "In the job's zone", "Note"],
            "rows": [_time_row(schedule, instant) for instant in times if schedule],
        },
        "versions": {
            "headers": ["Version", "In effect from", "By", "Schedule", "Enabled", "Why"],
            "rows": [_version_row(version) for version in versions],
        },
        "missed_spans": {
            "headers": ["First", "Last", "Count", "Reason"],
            "rows": [
                (instant_text(span.from_at), instant_text(span.to_at), span.count, span.reason)
                for span in spans
            ],
        },
    }


def _time_row(schedule: Schedule, instant: datetime) -> tuple[str, str, str]:
    shown = describe_occurrence(schedule, instant)
    local = f"{shown.local:%Y-%m-%d %H:%M:%S} {shown.offset}"
    return instant_text(instant), local, ", ".join(shown.notes).replace("_", " ")


def _version_row(version: JobVersion) -> tuple[Any, ...]:
    schedule = {name: value for name, value in version.schedule.items() if name != "anchor"}
    enabled = "deleted" if version.deleted else "on" if version.enabled else "off"
    return (
        version.version,
        instant_text(version.effective_from),
        version.changed_by,
        code(schedule),
        enabled,
        version.cause,
    )


def _run_now_page(job_ids: Iterable[UUID]) -> HttpResponseRedirect:
    """The page of `runs` that asks and then runs them: `jobs` knows nothing of runs."""
    query = {"job": [str(job_id) for job_id in job_ids]}
    return HttpResponseRedirect(reverse("admin:runs_run_add", query=query))


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text.strip())
    except ValueError:
        return None
