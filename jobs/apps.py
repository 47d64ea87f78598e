"""Application configuration of `jobs`."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "jobs"
