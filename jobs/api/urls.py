"""The addresses of jobs."""

from django.urls import path

from jobs.api.preview import SchedulePreview
from jobs.api.views import JobCreate, JobDelete, JobGet, JobList, JobUpdate
from scheduler_project.lib.routing import resource

urlpatterns = [
    path("jobs", resource(JobList, JobCreate), name="jobs"),
    path("jobs/<uuid:job_id>", resource(JobGet, JobUpdate, JobDelete), name="job"),
    path("schedules/preview", resource(SchedulePreview), name="schedule-preview"),
]
