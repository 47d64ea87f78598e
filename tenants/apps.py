"""Application configuration of `tenants`."""

from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "tenants"

    def ready(self) -> None:
        from tenants.api import openapi  # noqa: F401 – registers how keys are described
