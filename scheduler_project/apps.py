"""Application configuration of the project: it registers the system checks."""

from django.apps import AppConfig


class SchedulerProjectConfig(AppConfig):
    name = "scheduler_project"

    def ready(self) -> None:
        """Register the checks; they read models, which can be imported only now."""
        from scheduler_project import checks  # noqa: F401 – importing registers
