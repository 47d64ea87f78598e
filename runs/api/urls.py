"""The addresses of runs."""

from django.urls import path

from runs.api.backfill import JobBackfill
from runs.api.dead_letters import DeadLetterList, DeadLettersReplay, RunReplay
from runs.api.views import JobRunList, RunCancel, RunGet, RunList, RunNow
from scheduler_project.lib.routing import resource

urlpatterns = [
    path("jobs/<uuid:job_id>/runs", resource(JobRunList, RunNow), name="job-runs"),
    path("jobs/<uuid:job_id>/backfill", resource(JobBackfill), name="job-backfill"),
    path("runs", resource(RunList), name="runs"),
    path("runs/<uuid:run_id>", resource(RunGet), name="run"),
    path("runs/<uuid:run_id>/cancel", resource(RunCancel), name="run-cancel"),
    path("runs/<uuid:run_id>/replay", resource(RunReplay), name="run-replay"),
    path("dead-letters", resource(DeadLetterList), name="dead-letters"),
    path("dead-letters/replay", resource(DeadLettersReplay), name="dead-letters-replay"),
]
