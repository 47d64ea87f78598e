"""The console as a whole: its home page, and the accounts and task results that Django brings."""

from dataclasses import dataclass
from typing import Any, Final

from django.apps import apps
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.db.models import Count, QuerySet, Sum
from django.db.models.functions import Now
from django.http import HttpRequest
from django.urls import reverse
from django_celery_results.models import GroupResult, TaskResult
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from runs.models import Run
from scheduler_project.lib.admin_pages import ReadOnlyAdmin, instant_column
from workers.models import WorkerSession

# Beyond this a number is said to be "or more": a home page must not take seconds on a bad day.
_COUNTED_TO: Final = 10_000

# Lists of the side bar, in the order in which an operator asks: group, application, model, icon.
_LISTS: Final = (
    ("Scheduling", "runs", "run", "play_circle", "Runs"),
    ("Scheduling", "jobs", "job", "event_repeat", "Jobs"),
    ("Scheduling", "workers", "workersession", "memory", "Worker sessions"),
    ("Customers", "tenants", "tenant", "apartment", "Tenants"),
    ("Customers", "tenants", "apikey", "key", "Keys"),
    ("Customers", "runs", "webhookendpoint", "webhook", "Webhooks"),
    ("Customers", "runs", "notificationdelivery", "outgoing_mail", "Deliveries"),
    ("Console", "django_celery_results", "taskresult", "build", "Task results"),
    ("Console", "auth", "user", "person", "Users"),
    ("Console", "auth", "group", "group", "Groups"),
)

admin.site.index_title = "Overview"

for model in (User, Group, TaskResult, GroupResult):
    admin.site.unregister(model)


@admin.register(User)
class UserAdmin(DjangoUserAdmin, ModelAdmin):  # type: ignore[misc,type-arg]
    """Operators' accounts, in the console's own looks."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm


@admin.register(Group)
class GroupAdmin(DjangoGroupAdmin, ModelAdmin):  # type: ignore[misc]
    """Groups of operators: what each may do."""


@admin.register(TaskResult)
class TaskResultAdmin(ReadOnlyAdmin):
    """Results of deliveries and maintenance tasks; a run's result is its row and isn't here."""

    list_display = ("task_id", "task_name", "status", "worker", "created", "done")
    ordering = ("-id",)
    fieldsets = (
        (None, {"fields": ("task_id", "task_name", "status", "worker", "created", "done")}),
        ("Call", {"fields": ("task_args",)}),
        ("Result", {"fields": ("result", "traceback")}),
    )
    created = instant_column("date_created", "created")
    done = instant_column("date_done", "done")


def sidebar(request: HttpRequest) -> list[dict[str, Any]]:
    """The side bar's groups; a list that its viewer may not see is left out."""
    home = {"title": "Overview", "icon": "dashboard", "link": reverse("admin:index")}
    groups: dict[str, list[dict[str, Any]]] = {"Scheduling": [home]}
    for group, app, model_name, icon, title in _LISTS:
        model_admin = admin.site.get_model_admin(apps.get_model(app, model_name))
        if model_admin.has_view_permission(request):
            link = reverse(f"admin:{app}_{model_name}_changelist")
            groups.setdefault(group, []).append({"title": title, "icon": icon, "link": link})
    return [{"title": title, "items": items} for title, items in groups.items()]


@dataclass(frozen=True)
class Card:
    """One number of the home page, with the rows behind it."""

    title: str
    value: str
    hint: str
    url: str


def home_page(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """What the home page shows above its lists; only to those who may see runs and sessions."""
    order = [app_label for _, app_label, *_ in _LISTS]
    context["app_list"].sort(key=lambda app: order.index(app["app_label"]))
    may_see = request.user.has_perms(["runs.view_run", "workers.view_workersession"])
    return {**context, "cards": _cards() if may_see else []}


def _cards() -> list[Card]:
    """Who works, what runs and what waits past its time; each by an index, counted to a limit."""
    sessions = WorkerSession.objects.filter(ended_at=None, lease_expires_at__gt=Now())
    fleet = sessions.aggregate(number=Count("*"), slots=Sum("slots"))
    under_way = Run.objects.filter(finished_at=None)
    runs_url = reverse("admin:runs_run_changelist")
    running = _count(under_way.filter(status="running"))
    overdue = _count(under_way.filter(status__in=["queued", "leased"], ready_at__lt=Now()))
    return [
        Card(
            "Worker sessions",
            str(fleet["number"]),
            f"{fleet['slots'] or 0} slots",
            reverse("admin:workers_workersession_changelist"),
        ),
        Card("Running", running, "runs in a container now", f"{runs_url}?status=running"),
        Card(
            "Waiting past their time", overdue, "runs that want a slot", f"{runs_url}?status=queued"
        ),
    ]


def _count(runs: QuerySet[Run]) -> str:
    number = runs.values("pk")[:_COUNTED_TO].count()
    return f"{number:,}" if number < _COUNTED_TO else f"{_COUNTED_TO:,} or more"
