"""Settings of the bare project: the product's database and log settings, and nothing around."""

from scheduler_project.settings import (
    ALLOWED_HOSTS,
    DATABASES,
    DEFAULT_AUTO_FIELD,
    LOGGING,
    SECRET_KEY,
    TIME_ZONE,
    USE_I18N,
    USE_TZ,
)

__all__ = [
    "ALLOWED_HOSTS",
    "DATABASES",
    "DEFAULT_AUTO_FIELD",
    "LOGGING",
    "SECRET_KEY",
    "TIME_ZONE",
    "USE_I18N",
    "USE_TZ",
]

# For their models alone: the bare views write and read the same tables.
INSTALLED_APPS = ["django.contrib.contenttypes", "tenants", "jobs", "runs"]
# It gives answers their length: without it they would be sent in chunks, which costs more.
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
ROOT_URLCONF = "bench.bare.views"
WSGI_APPLICATION = "bench.bare.wsgi.application"
