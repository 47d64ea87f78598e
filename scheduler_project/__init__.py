"""The project: wiring of the apps into processes.

The Celery application is imported here so that every process, the API's too, publishes through it;
without it Celery's default application would look for a broker that isn't ours.
"""

from scheduler_project.celery import app as celery_app

__all__ = ["celery_app"]
