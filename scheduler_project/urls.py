"""The addresses of the service."""

from django.contrib import admin
from django.urls import include, path
from drf_spectacular.views import SpectacularSwaggerView

from runs.api.usage import UsageGet
from scheduler_project.lib.health import healthz, readyz
from scheduler_project.lib.metrics_http import metrics
from scheduler_project.pages import OpenApiGet, errors_page
from scheduler_project.usage import COUNTERS
from tenants.api.views import MeGet

urlpatterns = [
    path("v1/", include("jobs.api.urls")),
    path("v1/", include("runs.api.urls")),
    path("v1/me", MeGet.as_view(counters=COUNTERS), name="me"),
    path("v1/usage", UsageGet.as_view(counters=COUNTERS), name="usage"),
    path("v1/openapi.json", OpenApiGet.as_view(), name="openapi"),
    path("docs", SpectacularSwaggerView.as_view(url_name="openapi"), name="docs"),
    path("docs/errors", errors_page, name="errors"),
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("metrics", metrics, name="metrics"),
    path("admin/", admin.site.urls),
]
