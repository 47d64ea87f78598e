"""The operators' console: lists and pages load, empty and full, and actions act."""

import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.db.models import Model
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django_celery_results.models import TaskResult

from jobs.domain.spec import JobChanges
from jobs.models import Job, JobVersion
from jobs.services import job_create, job_delete
from runs import leases
from runs.domain.outcome import OutcomeCode, outcome
from runs.leases import Completion
from runs.models import (
    DeliveryAttempt,
    NotificationDelivery,
    OutboxMessage,
    Run,
    WebhookEndpoint,
)
from tenants.domain.api_key_text import hash_of
from tenants.models import ApiKey, Tenant
from tenants.services import apikey_issue, tenant_create
from tests.support.factories import lease, make_run, make_session, reread, start
from tests.support.webhooks import SECRET as WEBHOOK_SECRET
from tests.support.webhooks import make_endpoint

pytestmark = pytest.mark.django_db

LISTS = [
    "tenants_tenant",
    "tenants_apikey",
    "jobs_job",
    "runs_run",
    "workers_workersession",
    "runs_webhookendpoint",
    "runs_notificationdelivery",
    "auth_user",
    "auth_group",
    "django_celery_results_taskresult",
]
SECRET = "hunter2-of-the-customer"


@pytest.fixture(scope="module", autouse=True)
def static_root() -> None:
    """WhiteNoise warns of a directory that is not there, and warnings are errors."""
    settings.STATIC_ROOT.mkdir(parents=True, exist_ok=True)


@pytest.fixture
def root() -> Client:
    """A superuser's browser."""
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


@pytest.fixture
def staff() -> User:
    """An operator without any permission."""
    return User.objects.create_user("staff", is_staff=True)


@pytest.fixture
def viewer(staff: User) -> Client:
    """The browser of an operator who may look at everything and do nothing."""
    staff.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
    client = Client()
    client.force_login(staff)
    return client


@pytest.fixture
def tenant() -> Tenant:
    return tenant_create(name="Acme")


@pytest.fixture
def job(tenant: Tenant) -> Job:
    said = JobChanges(
        name="report",
        schedule={"cron": "30 2 * * *", "time_zone": "Asia/Kolkata"},
        task={"image": "demo", "timeout_s": 60, "env": {"PASSWORD": SECRET}},
        overlap="allow",
        retry={"max_attempts": 2},
    )
    return job_create(tenant, said, changed_by="a test")


@pytest.fixture
def story(job: Job) -> dict[str, Run]:
    """A run of every status, made as the product makes them where that is cheap."""
    session = make_session(node="node-1")
    runs = {name: make_run(job, due_in_s=-number) for number, name in enumerate(
        ("queued", "leased", "running", "retried", "succeeded"), start=1)}  # fmt: skip
    lease(runs["leased"], session)
    start(runs["running"], session)
    for name, code in (
        ("retried", OutcomeCode.NON_ZERO_EXIT),
        ("succeeded", OutcomeCode.SUCCEEDED),
    ):
        leased = start(runs[name], session)
        ended = Completion(
            run_id=leased.run_id,
            scheduled_for=leased.scheduled_for,
            job_id=leased.job_id,
            fence=leased.fence,
            outcome=outcome(code, f"it was {name}"),
            exit_code=int(code is not OutcomeCode.SUCCEEDED),
            started_at=leased.scheduled_for + timedelta(seconds=0.25),
            finished_at=leased.scheduled_for + timedelta(seconds=2),
            output=b"<script>alert('printed')</script>",
        )
        leases.complete(session, "node-1", [ended])
    stale = Completion(
        run_id=runs["succeeded"].run_id,
        scheduled_for=runs["succeeded"].scheduled_for,
        job_id=job.job_id,
        fence=1_000_000,
        outcome=outcome(OutcomeCode.SUCCEEDED, ""),
    )
    leases.complete(session, "node-1", [stale])
    runs["skipped"] = make_run(
        job,
        due_in_s=-20,
        status="skipped",
        skip_reason="overlap",
        finished_at=runs["queued"].scheduled_for,
    )
    runs["blocked"] = make_run(job, due_in_s=-30, status="blocked")
    return {name: reread(run) for name, run in runs.items()}


def page_of(row: Model) -> str:
    opts = row._meta
    return reverse(f"admin:{opts.app_label}_{opts.model_name}_change", args=[row.pk])


def list_of(name: str, **query: str) -> str:
    return reverse(f"admin:{name}_changelist", query=query or None)


def text(response: Any, status: int = 200) -> str:
    """The page, which must have this status."""
    assert response.status_code == status, response.content[:2_000]
    return str(response.content.decode())


def confirm(client: Client, url: str) -> str:
    """Open the page that asks, then answer yes; what the page afterwards says."""
    assert 'name="confirmed"' in text(client.get(url))
    return text(client.post(url, {"confirmed": "yes"}, follow=True))


# --- lists and pages --------------------------------------------------------------------------


@pytest.mark.parametrize("name", LISTS)
def test_every_list_loads_without_rows(root: Client, name: str) -> None:
    text(root.get(list_of(name)))


@pytest.mark.parametrize("name", LISTS[:5])
def test_every_list_loads_with_rows_for_a_superuser_and_for_a_viewer(
    root: Client, viewer: Client, tenant: Tenant, story: dict[str, Run], name: str
) -> None:
    apikey_issue(tenant=tenant, name="robot", scopes=["write"])
    for client in (root, viewer):
        page = text(client.get(list_of(name)))
        assert {"workers_workersession": "node-1"}.get(name, "Acme") in page


@pytest.mark.parametrize("name", LISTS)
def test_a_plain_member_of_the_staff_sees_no_list(staff: User, name: str) -> None:
    client = Client()
    client.force_login(staff)
    text(client.get(reverse("admin:index")))
    text(client.get(list_of(name)), status=403)


def test_who_is_not_logged_in_is_asked_to(tenant: Tenant) -> None:
    page = text(Client().get(page_of(tenant), follow=True))
    assert "Scheduler" in page
    assert 'name="password"' in page
    assert "Acme" not in page


def test_the_home_page_counts_sessions_and_runs(root: Client, story: dict[str, Run]) -> None:
    page = text(root.get(reverse("admin:index")))
    assert "Worker sessions" in page
    assert "10 slots" in page


def test_the_home_page_loads_on_an_empty_installation(root: Client) -> None:
    assert "0 slots" in text(root.get(reverse("admin:index")))


@pytest.mark.parametrize(
    "name",
    ["queued", "leased", "running", "retried", "succeeded", "skipped", "blocked"],
)
def test_the_page_of_a_run_of_every_status_loads(
    root: Client, viewer: Client, story: dict[str, Run], name: str
) -> None:
    for client in (root, viewer):
        assert str(story[name].run_id) in text(client.get(page_of(story[name])))


def test_the_page_of_a_run_tells_its_attempts_output_lag_and_events(
    root: Client, story: dict[str, Run]
) -> None:
    page = text(root.get(page_of(story["succeeded"])))
    assert "it was succeeded" in page
    assert "node-1" in page
    assert "0.250 s = placed" in page
    assert "stale fence" in page
    assert "<script>alert('printed')" not in page
    assert "&lt;script&gt;alert(&#x27;printed&#x27;)&lt;/script&gt;" in page


def test_the_page_of_a_waiting_run_says_what_it_waits_for(
    root: Client, story: dict[str, Run]
) -> None:
    assert "retry backoff until" in text(root.get(page_of(story["retried"])))


def test_the_page_of_a_session_shows_lease_slots_and_its_runs(
    root: Client, story: dict[str, Run]
) -> None:
    url = reverse("admin:workers_workersession_change", args=[story["running"].lease_owner])
    page = text(root.get(url))
    assert "1 of 10" in page
    assert page_of(story["running"]) in page
    assert page_of(story["leased"]) in page
    assert page_of(story["succeeded"]) not in page


def test_the_page_of_a_job_shows_its_next_times_in_utc_and_in_its_zone(
    root: Client, job: Job
) -> None:
    page = text(root.get(page_of(job)))
    assert page.count("21:00:00.000 UTC") == 5
    assert page.count("02:30:00 +05:30") == 5


def test_the_page_of_a_job_shows_who_changed_it(root: Client, job: Job) -> None:
    assert "a test" in text(root.get(page_of(job)))


def test_the_page_of_a_deleted_job_loads(root: Client, tenant: Tenant, job: Job) -> None:
    job_delete(tenant, job.job_id, changed_by="a test")
    assert "deleted" in text(root.get(page_of(job)))
    assert "report" in text(root.get(list_of("jobs_job", state="deleted")))
    assert page_of(job) not in text(root.get(list_of("jobs_job")))


def test_pages_of_rows_that_do_not_exist_lead_home(root: Client) -> None:
    for url in (
        reverse("admin:runs_run_change", args=[uuid4()]),
        reverse("admin:runs_run_change", args=["not-an-id"]),
        reverse("admin:jobs_job_change", args=[uuid4()]),
        reverse("admin:workers_workersession_change", args=[uuid4()]),
    ):
        assert root.get(url).status_code == 302, url


# --- what is never shown ----------------------------------------------------------------------


def test_no_page_shows_a_hash_a_key_or_a_customers_variable(
    root: Client, tenant: Tenant, job: Job
) -> None:
    issued = apikey_issue(tenant=tenant, name="robot", scopes=["write"])
    for url in (
        list_of("tenants_apikey"),
        page_of(issued.api_key),
        page_of(tenant),
        list_of("jobs_job"),
        page_of(job),
    ):
        page = text(root.get(url))
        assert issued.text not in page
        assert issued.text.rpartition("_")[2] not in page
        assert hash_of(issued.text) not in page
        assert SECRET not in page


@pytest.mark.parametrize("name", ["runs_run", "jobs_job", "workers_workersession"])
def test_rows_have_no_form_and_no_way_to_delete(
    root: Client, story: dict[str, Run], name: str
) -> None:
    rows = {
        "runs_run": story["running"].run_id,
        "jobs_job": story["running"].job_id,
        "workers_workersession": story["running"].lease_owner,
    }
    url = reverse(f"admin:{name}_change", args=[rows[name]])
    assert 'name="_save"' not in text(root.get(url))
    assert root.post(url, {"status": "succeeded"}).status_code == 403
    assert root.post(reverse(f"admin:{name}_delete", args=[rows[name]])).status_code == 403


# --- keys and tenants -------------------------------------------------------------------------


def test_an_issued_key_is_shown_once_and_works(root: Client, tenant: Tenant) -> None:
    form = {"tenant": str(tenant.pk), "name": "robot", "scopes": ["write"], "expires_in_days": "3"}
    answer = root.post(reverse("admin:tenants_apikey_add"), form)
    found = re.search(r"sk_\w{12}_\w{43}", text(answer))
    assert found is not None
    key = ApiKey.objects.get()
    assert key.key_hash == hash_of(found[0])
    assert key.scopes == ["write"]
    assert key.expires_at is not None
    assert "no-store" in answer["Cache-Control"]
    for url in (list_of("tenants_apikey"), page_of(key), reverse("admin:index")):
        assert found[0] not in text(root.get(url))


def test_a_key_without_scopes_is_refused_at_its_field(root: Client, tenant: Tenant) -> None:
    form = {"tenant": str(tenant.pk), "name": "robot"}
    assert "This field is required" in text(root.post(reverse("admin:tenants_apikey_add"), form))
    assert not ApiKey.objects.exists()


def test_what_the_service_refuses_is_said_in_the_form(root: Client, tenant: Tenant) -> None:
    form = {"tenant": str(tenant.pk), "name": "two\u2028lines", "scopes": ["read"]}
    page = text(root.post(reverse("admin:tenants_apikey_add"), form))
    assert "at least one visible character" in page
    assert not ApiKey.objects.exists()


def test_a_key_is_revoked_after_a_question(root: Client, tenant: Tenant) -> None:
    key = apikey_issue(tenant=tenant, name="robot", scopes=["write"]).api_key
    url = reverse("admin:tenants_apikey_revoke", args=[key.pk])
    assert "revoked" in confirm(root, url)
    key.refresh_from_db()
    assert key.revoked_at is not None


def test_chosen_keys_are_revoked_from_the_list(root: Client, tenant: Tenant) -> None:
    keys = [apikey_issue(tenant=tenant, name=name, scopes=["read"]).api_key for name in "ab"]
    chosen = {"action": "revoke_selected", "_selected_action": [str(key.pk) for key in keys]}
    asked = text(root.post(list_of("tenants_apikey"), {**chosen, "index": "0"}))
    assert "can&#x27;t be undone" in asked
    assert ApiKey.objects.filter(revoked_at=None).count() == 2
    text(root.post(list_of("tenants_apikey"), {**chosen, "confirmed": "yes"}, follow=True))
    assert not ApiKey.objects.filter(revoked_at=None).exists()


def test_a_viewer_can_neither_issue_nor_revoke(viewer: Client, tenant: Tenant) -> None:
    key = apikey_issue(tenant=tenant, name="robot", scopes=["write"]).api_key
    revoke = reverse("admin:tenants_apikey_revoke", args=[key.pk])
    assert revoke not in text(viewer.get(page_of(key)))
    assert viewer.post(revoke, {"confirmed": "yes"}).status_code == 403
    assert viewer.get(reverse("admin:tenants_apikey_add")).status_code == 403
    assert viewer.get(reverse("admin:tenants_tenant_add")).status_code == 403
    key.refresh_from_db()
    assert key.revoked_at is None


def test_a_tenants_contact_is_changed_and_checked(root: Client, tenant: Tenant) -> None:
    url = reverse("admin:tenants_tenant_contact", args=[tenant.pk])
    assert "Enter a valid email" in text(root.post(url, {"contact_email": "nobody"}))
    page = text(root.post(url, {"contact_email": "ops@acme.example"}, follow=True))
    assert "ops@acme.example" in page
    assert Tenant.objects.get(pk=tenant.pk).contact_email == "ops@acme.example"


# --- webhooks ---------------------------------------------------------------------------------


@pytest.fixture
def delivery(tenant: Tenant) -> NotificationDelivery:
    """One that was given up after an attempt."""
    webhook = make_endpoint(tenant, url="https://hooks.acme.example/x")
    message = OutboxMessage.objects.create(
        tenant=tenant, event="run.failed", payload={"exit_code": 70}
    )
    made = NotificationDelivery.objects.create(
        tenant=tenant,
        webhook=webhook,
        target_id=webhook.pk,
        message=message,
        status="failed",
        attempts=1,
        next_attempt_at=None,
        try_until=Now(),
        finished_at=Now(),
        last_status_code=503,
        last_error="status",
    )
    DeliveryAttempt.objects.create(
        delivery=made,
        attempt=1,
        duration_ms=184,
        status_code=503,
        error="status",
        answer="<script>alert('answered')</script>",
    )
    return made


def test_the_page_of_a_delivery_shows_its_attempts_and_no_page_a_secret(
    root: Client, delivery: NotificationDelivery
) -> None:
    assert delivery.webhook is not None
    pages = [
        text(root.get(list_of("runs_notificationdelivery"))),
        text(root.get(list_of("runs_notificationdelivery", webhook=str(delivery.webhook_id)))),
        text(root.get(list_of("runs_webhookendpoint"))),
        text(root.get(page_of(delivery.webhook))),
        text(root.get(page_of(delivery))),
    ]
    assert all("hooks.acme.example" in page for page in pages)
    for page in pages:
        assert delivery.webhook.secret not in page
        assert WEBHOOK_SECRET not in page
    assert "184 ms" in pages[-1]
    assert "503" in pages[-1]
    assert "<script>alert" not in pages[-1]
    other = list_of("runs_notificationdelivery", webhook=str(uuid4()))
    assert "hooks.acme.example" not in text(root.get(other))


def test_a_delivery_is_sent_again_after_a_question_and_once(
    root: Client, viewer: Client, delivery: NotificationDelivery
) -> None:
    url = reverse("admin:runs_notificationdelivery_redeliver", args=[delivery.pk])
    assert viewer.post(url, {"confirmed": "yes"}).status_code == 403
    assert "on its way" in confirm(root, url)
    assert NotificationDelivery.objects.get().status == "pending"
    assert "still being tried" in confirm(root, url)


def test_a_webhook_is_switched_off_and_on_after_questions(
    root: Client, viewer: Client, delivery: NotificationDelivery
) -> None:
    off, on = (
        reverse(f"admin:runs_webhookendpoint_{verb}", args=[delivery.webhook_id])
        for verb in ("disable", "enable")
    )
    assert viewer.post(off, {"confirmed": "yes"}).status_code == 403
    confirm(root, off)
    assert not WebhookEndpoint.objects.get().enabled
    confirm(root, on)
    assert WebhookEndpoint.objects.get().enabled


def test_the_result_of_a_delivery_is_shown(root: Client) -> None:
    result = TaskResult.objects.create(
        task_id="t", task_name="notifications.deliver", status="SUCCESS", result='"delivered"'
    )
    assert "notifications.deliver" in text(root.get(list_of("django_celery_results_taskresult")))
    assert "delivered" in text(root.get(page_of(result)))


def test_a_tenant_is_created_with_its_limits(root: Client) -> None:
    page = text(root.get(reverse("admin:tenants_tenant_add")))
    form = dict(re.findall(r'name="(\w+)" value="([^"]*)"', page))
    form |= {"name": "Globex", "max_jobs": "7", "isolation_floor": "sandbox"}
    form.pop("csrfmiddlewaretoken", None)
    text(root.post(reverse("admin:tenants_tenant_add"), form, follow=True))
    made = Tenant.objects.get()
    assert (made.name, made.max_jobs, made.isolation_floor) == ("Globex", 7, "sandbox")


# --- jobs -------------------------------------------------------------------------------------


def test_a_job_is_switched_off_and_on_after_questions(root: Client, job: Job) -> None:
    for action, enabled in (("disable", False), ("enable", True)):
        confirm(root, reverse(f"admin:jobs_job_{action}", args=[job.pk]))
        job.refresh_from_db()
        assert job.enabled is enabled
    by = JobVersion.objects.filter(job=job).order_by("version").values_list("changed_by", flat=True)
    assert list(by) == ["a test", "admin root", "admin root"]


def test_chosen_jobs_are_switched_off_from_the_list(root: Client, job: Job) -> None:
    chosen = {"action": "disable_selected", "_selected_action": [str(job.pk)]}
    text(root.post(list_of("jobs_job"), {**chosen, "index": "0"}))
    job.refresh_from_db()
    assert job.enabled
    assert "report is off" in text(
        root.post(list_of("jobs_job"), {**chosen, "confirmed": "yes"}, follow=True)
    )
    job.refresh_from_db()
    assert not job.enabled


@pytest.mark.parametrize("chosen", ["no-uuid", "\0", "' OR 1=1"])
def test_a_choice_that_is_no_row_is_refused_in_words(root: Client, job: Job, chosen: str) -> None:
    address = reverse("admin:jobs_job_changelist")
    form = {"action": "disable_selected", "_selected_action": chosen}
    answer = root.post(address, form, follow=True)
    assert answer.status_code == 200
    assert "exist" in answer.content.decode()


def test_a_deleted_job_is_refused_in_words(root: Client, tenant: Tenant, job: Job) -> None:
    job_delete(tenant, job.job_id, changed_by="a test")
    assert "is deleted" in confirm(root, reverse("admin:jobs_job_disable", args=[job.pk]))


def test_a_job_is_run_now_after_a_question(root: Client, job: Job) -> None:
    asked = root.get(reverse("admin:jobs_job_run", args=[job.pk]))
    assert asked.status_code == 302
    assert "is queued" in confirm(root, asked["Location"])
    run = Run.objects.get()
    assert (run.job_id, run.trigger, run.status) == (job.job_id, "manual", "queued")


def test_a_viewer_can_neither_switch_nor_run_a_job(viewer: Client, job: Job) -> None:
    for action in ("enable", "disable", "run"):
        url = reverse(f"admin:jobs_job_{action}", args=[job.pk])
        assert viewer.post(url, {"confirmed": "yes"}).status_code == 403
    add = reverse("admin:runs_run_add", query={"job": str(job.pk)})
    assert viewer.post(add, {"confirmed": "yes"}).status_code == 403
    assert not Run.objects.exists()


def test_names_are_searched_within_a_tenant_and_ids_everywhere(
    root: Client, tenant: Tenant, job: Job
) -> None:
    assert page_of(job) in text(root.get(list_of("jobs_job", q=str(job.job_id))))
    assert page_of(job) not in text(root.get(list_of("jobs_job", q="port")))
    within = list_of("jobs_job", q="port", tenant__tenant_id__exact=str(tenant.pk))
    assert page_of(job) in text(root.get(within))


# --- runs -------------------------------------------------------------------------------------


def test_a_waiting_run_is_cancelled_at_once_and_a_running_one_is_asked_to_stop(
    root: Client, story: dict[str, Run]
) -> None:
    url = reverse("admin:runs_run_cancel", args=[story["queued"].pk])
    assert "is cancelled" in confirm(root, url)
    assert reread(story["queued"]).status == "cancelled"
    url = reverse("admin:runs_run_cancel", args=[story["running"].pk])
    assert "is being stopped" in confirm(root, url)
    asked = reread(story["running"])
    assert asked.status == "running"
    assert asked.cancel_requested_at is not None


def test_chosen_runs_are_cancelled_and_final_ones_refused_in_words(
    root: Client, story: dict[str, Run]
) -> None:
    ids = [str(story[name].run_id) for name in ("queued", "succeeded")]
    chosen = {"action": "cancel_selected", "_selected_action": ids}
    text(root.post(list_of("runs_run"), {**chosen, "index": "0"}))
    assert reread(story["queued"]).status == "queued"
    page = text(root.post(list_of("runs_run"), {**chosen, "confirmed": "yes"}, follow=True))
    assert f"Run {ids[1]} is succeeded already" in page
    assert reread(story["queued"]).status == "cancelled"


def test_a_viewer_cannot_cancel(viewer: Client, story: dict[str, Run]) -> None:
    url = reverse("admin:runs_run_cancel", args=[story["queued"].pk])
    assert viewer.post(url, {"confirmed": "yes"}).status_code == 403
    chosen = {"action": "cancel_selected", "_selected_action": [str(story["queued"].pk)]}
    viewer.post(list_of("runs_run"), {**chosen, "confirmed": "yes"})
    assert reread(story["queued"]).status == "queued"


def test_an_ended_run_is_replayed_and_one_that_has_not_ended_is_refused_in_words(
    root: Client, story: dict[str, Run]
) -> None:
    url = reverse("admin:runs_run_replay", args=[story["succeeded"].pk])
    assert "is queued" in confirm(root, url)
    replay = Run.objects.get(trigger="replay")
    assert replay.replay_of == story["succeeded"].run_id
    assert page_of(replay) in text(root.get(page_of(story["succeeded"])))

    ids = [str(story[name].run_id) for name in ("queued", "skipped")]
    chosen = {"action": "replay_selected", "_selected_action": ids}
    page = text(
        root.post(list_of("runs_run"), {**chosen, "confirmed": "yes", "index": "0"}, follow=True)
    )
    assert f"Run {ids[0]} is queued: it has not ended" in page
    assert Run.objects.filter(trigger="replay").count() == 2


def test_a_viewer_cannot_replay(viewer: Client, story: dict[str, Run]) -> None:
    url = reverse("admin:runs_run_replay", args=[story["succeeded"].pk])
    assert viewer.post(url, {"confirmed": "yes"}).status_code == 403
    assert not Run.objects.filter(trigger="replay").exists()


def test_runs_are_filtered_by_status_day_tenant_and_job_and_found_by_id(
    root: Client, story: dict[str, Run], job: Job
) -> None:
    queued, skipped = page_of(story["queued"]), page_of(story["skipped"])
    narrowed: list[dict[str, str]] = [
        {"status": "skipped"},
        {"status": "skipped", "day": story["skipped"].scheduled_for.date().isoformat()},
        {"status": "skipped", "tenant__tenant_id__exact": str(job.tenant_id)},
        {"status": "skipped", "job": str(job.pk)},
        {"q": str(story["skipped"].run_id)},
    ]
    for query in narrowed:
        page = text(root.get(list_of("runs_run", **query)))
        assert skipped in page, query
        assert queued not in page, query
    for nowhere in ({"job": str(uuid4())}, {"q": "nothing"}, {"day": "2020-01-01"}, {"job": "x"}):
        assert skipped not in text(root.get(list_of("runs_run", **nowhere))), nowhere


def test_a_list_of_runs_counts_nothing_and_looks_into_no_past_partition(
    root: Client, story: dict[str, Run]
) -> None:
    with CaptureQueriesContext(connection) as captured:
        text(root.get(list_of("runs_run")))
    on_runs = [query["sql"] for query in captured if 'FROM "runs"' in query["sql"]]
    assert len(on_runs) == 1
    assert "COUNT(" not in on_runs[0]
    assert '"runs"."scheduled_for" >=' in on_runs[0]
    assert "LIMIT 50" in on_runs[0]


def test_a_run_is_looked_up_by_both_columns_of_its_key(root: Client, story: dict[str, Run]) -> None:
    with CaptureQueriesContext(connection) as captured:
        text(root.get(page_of(story["succeeded"])))
    on_runs = [query["sql"] for query in captured if 'FROM "runs"' in query["sql"]]
    assert on_runs
    assert all('"scheduled_for"' in sql.partition("WHERE")[2] for sql in on_runs)


def test_a_page_too_deep_leads_back_to_the_first(root: Client, story: dict[str, Run]) -> None:
    assert root.get(list_of("runs_run", p="101")).status_code == 302
