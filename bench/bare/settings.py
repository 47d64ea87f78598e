"""Settings of the bare project: the product's own (database, log, server), and nothing around."""

from scheduler_project.settings import *  # noqa: F403 – whatever the server's configuration reads

# For their models alone: the bare views write and read the same tables.
INSTALLED_APPS = ["django.contrib.contenttypes", "tenants", "jobs", "runs"]
# It gives answers their length: without it they would be sent in chunks, which costs more.
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
ROOT_URLCONF = "bench.bare.views"
WSGI_APPLICATION = "bench.bare.wsgi.application"
