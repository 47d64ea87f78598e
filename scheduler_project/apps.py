"""Application configuration of the project: it registers the system checks."""

from django.apps import AppConfig


class SchedulerProjectConfig(AppConfig):
    name = "scheduler_project"
