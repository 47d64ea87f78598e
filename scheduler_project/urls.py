"""The addresses of the service."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("v1/", include("jobs.api.urls")),
    path("v1/", include("runs.api.urls")),
    path("admin/", admin.site.urls),
]
