"""All settings, read once and strictly from the environment; a bad one stops the start.

Nothing else in the project reads the environment, and pure modules never read settings: they take
what they need as arguments.
"""

import socket
from pathlib import Path
from typing import Any

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from scheduler_project.lib import env

BASE_DIR = Path(__file__).resolve().parent.parent

# --- process ---------------------------------------------------------------------------------

# Which of the five kinds of process this is; it decides the database time-outs below.
PROCESS_ROLE = env.choice(
    "PROCESS_ROLE", "command", {"api", "scheduler", "worker", "notifier", "command"}
)
DEBUG = env.boolean("DEBUG", False)
SECRET_KEY = env.text("SECRET_KEY", "insecure-development-key" if DEBUG else None)
# What secrets in the database are sealed by (lib/sealing.py): the first seals, all of them open.
ENCRYPTION_KEYS = env.words("ENCRYPTION_KEYS", [SECRET_KEY])
ALLOWED_HOSTS = env.words("ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.words("CSRF_TRUSTED_ORIGINS", [])
# Name of this installation: it keeps the containers and files of two stacks on one machine apart.
INSTANCE = env.text("INSTANCE", "scheduler")
NODE = env.text("NODE", socket.gethostname())
# Where a scheduler or worker serves its metrics; 0: any free port; -1 (unset): nowhere.
METRICS_PORT = env.integer("METRICS_PORT", -1, low=-1, high=65_535)
METRICS_ADDRESS = env.text("METRICS_ADDRESS", "127.0.0.1")
# Where the processes of one API server put their counts together (scheduler_project.gunicorn_conf).
PROMETHEUS_MULTIPROC_DIR = env.text("PROMETHEUS_MULTIPROC_DIR", "")

# --- applications -----------------------------------------------------------------------------

INSTALLED_APPS = [
    "unfold",
    "unfold.contrib.filters",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_celery_results",
    "scheduler_project",
    "tenants",
    "jobs",
    "runs",
    "workers",
]
MIDDLEWARE = [
    "scheduler_project.lib.api_middleware.ApiMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "scheduler_project.urls"
WSGI_APPLICATION = "scheduler_project.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "scheduler_project" / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

# --- database ---------------------------------------------------------------------------------

# A frozen process must not hold the world's locks: the server ends its transaction (architecture
# §6). Times in milliseconds; a command line (migrations, checks) may take as long as it needs.
_DATABASE_TIMEOUTS_MS = {
    "api": {"statement_timeout": 10_000, "lock_timeout": 3_000, "idle": 10_000},
    "scheduler": {"statement_timeout": 15_000, "lock_timeout": 2_000, "idle": 5_000},
    "worker": {"statement_timeout": 8_000, "lock_timeout": 2_000, "idle": 5_000},
    "notifier": {"statement_timeout": 8_000, "lock_timeout": 2_000, "idle": 5_000},
    "command": {"statement_timeout": 0, "lock_timeout": 10_000, "idle": 60_000},
}[PROCESS_ROLE]

# Connections that are shared by a process's threads; 0: each thread has its own.
DATABASE_POOL_SIZE = env.integer("DATABASE_POOL_SIZE", 0, low=0, high=200)


def _database(name: str, url: str) -> Any:
    """The settings of one server, given by the variable `name`."""
    try:
        database: Any = dj_database_url.parse(url)
    except dj_database_url.ParseError as error:
        raise ImproperlyConfigured(f"{name} is not valid: {error}") from error
    # Django refuses a pool together with persistent connections.
    database["CONN_MAX_AGE"] = 0 if DATABASE_POOL_SIZE else None
    # A restarted server leaves dead connections behind: checked before they are used.
    database["CONN_HEALTH_CHECKS"] = True
    database["OPTIONS"] = {
        **database.get("OPTIONS", {}),
        "options": " ".join(
            f"-c {name}={value}"
            for name, value in {
                "statement_timeout": _DATABASE_TIMEOUTS_MS["statement_timeout"],
                "lock_timeout": _DATABASE_TIMEOUTS_MS["lock_timeout"],
                "idle_in_transaction_session_timeout": _DATABASE_TIMEOUTS_MS["idle"],
                "timezone": "UTC",
            }.items()
        ),
        "application_name": f"{INSTANCE}-{PROCESS_ROLE}",
        "connect_timeout": 3,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 8_000,
        # Of the statements that ask for it (lib/prepared.py); Django's own cursors never prepare.
        "prepare_threshold": 4,
    }
    if DATABASE_POOL_SIZE:
        database["OPTIONS"]["pool"] = {"min_size": 1, "max_size": DATABASE_POOL_SIZE, "timeout": 3}
    return database


DATABASES = {
    "default": _database(
        "DATABASE_URL",
        env.text("DATABASE_URL", accepted="postgresql://user:password@host:port/name"),
    )
}
# A streaming replica, which serves lists while it is not further behind than this.
DATABASE_REPLICA_URL = env.text("DATABASE_REPLICA_URL", "")
REPLICA_MAX_LAG_S = env.seconds("REPLICA_MAX_LAG_S", 2, low=0.2, high=300)
if DATABASE_REPLICA_URL:
    DATABASES["replica"] = _database("DATABASE_REPLICA_URL", DATABASE_REPLICA_URL)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- time zones and language ------------------------------------------------------------------

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
USE_I18N = False

STATIC_URL = "static/"
STATIC_ROOT = Path(env.text("STATIC_ROOT", str(BASE_DIR / ".local" / "static")))
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedStaticFilesStorage"},
}

# --- operators' console -------------------------------------------------------------------------

UNFOLD = {
    "SITE_TITLE": "Scheduler",
    "SITE_HEADER": "Scheduler",
    "SITE_SUBHEADER": "Operators' console",
    "SITE_SYMBOL": "schedule",
    "SITE_URL": None,
    "DASHBOARD_CALLBACK": "scheduler_project.admin.home_page",
    "SIDEBAR": {"navigation": "scheduler_project.admin.sidebar"},
}

# --- security ---------------------------------------------------------------------------------

# True behind a proxy that ends TLS; False only for the stack on one machine over plain HTTP.
HTTPS = env.boolean("HTTPS", not DEBUG)
SECURE_SSL_REDIRECT = HTTPS
SESSION_COOKIE_SECURE = HTTPS
CSRF_COOKIE_SECURE = HTTPS
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = HTTPS
SECURE_HSTS_PRELOAD = HTTPS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$"]
X_FRAME_OPTIONS = "DENY"
# Only the size of form posts in admin; the API reads its own body with its own bound.
DATA_UPLOAD_MAX_MEMORY_SIZE = 2_621_440

# --- API --------------------------------------------------------------------------------------

APPEND_SLASH = False
# How long a copy of a request waits for the first one before it is told to come back.
IDEMPOTENCY_WAIT_MS = env.integer("IDEMPOTENCY_WAIT_MS", 1_000, low=1, high=10_000)
API_MAX_BODY_BYTES = env.integer("API_MAX_BODY_BYTES", 262_144, low=1_024, high=16_777_216)
# Calls a second per key in the long run, and at once; far above what one machine serves, so that
# only a loop gone wild meets them. The last one counts failures per address.
RATE_LIMITS = {
    name: (
        env.integer(f"RATE_LIMIT_{name.upper()}_PER_S", per_s, low=1, high=1_000_000),
        env.integer(f"RATE_LIMIT_{name.upper()}_BURST", burst, low=1, high=10_000_000),
    )
    for name, per_s, burst in (
        ("read", 1_000, 5_000),
        ("write", 500, 5_000),
        ("run_now", 200, 2_000),
        ("failed_authentication", 20, 2_000),
    )
}
# The most a request waits for Redis to count it; usual is a tenth of a millisecond.
RATE_LIMIT_TIMEOUT_MS = env.integer("RATE_LIMIT_TIMEOUT_MS", 25, low=1, high=1_000)
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["tenants.api.authentication.ApiKeyAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["tenants.api.permissions.HasScope"],
    "DEFAULT_PARSER_CLASSES": ["scheduler_project.lib.strict_json.StrictJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_THROTTLE_CLASSES": ["tenants.api.throttling.KeyThrottle"],
    "DEFAULT_METADATA_CLASS": None,
    "URL_FORMAT_OVERRIDE": None,
    "EXCEPTION_HANDLER": "scheduler_project.lib.problems.exception_handler",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Scheduler API",
    "DESCRIPTION": "Schedule container jobs: once, or on a cron schedule in a time zone.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_AUTHENTICATION": [],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "persistAuthorization": False},
    "COMPONENT_SPLIT_REQUEST": True,
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "scheduler_project.lib.openapi.add_what_all_share",
    ],
}

# --- broker -----------------------------------------------------------------------------------

REDIS_URL = env.text("REDIS_URL", accepted="redis://host:port/0")

# Messages are hints to look at a row, so nothing here keeps a promise. `acks_late` stays off: after
# the start the lease owns recovery, and a message delivered again would only be refused.
CELERY_BROKER_URL = REDIS_URL
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_TRANSPORT_OPTIONS = {
    # From a message's fetch on: far above the longest time that one is held (the place lead), far
    # below an operator's patience. The shortest of any process on this Redis wins: set it once.
    "visibility_timeout": 300,
    "socket_timeout": 5,
    "socket_connect_timeout": 2,
    "socket_keepalive": True,
    "health_check_interval": 10,
    # A publisher that finds the broker away gives up at once: the row is the truth, and the
    # dispatcher must not stand still (kombu's default waits six seconds for each attempt).
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0.1,
    "interval_max": 0.1,
}
CELERY_RESULT_BACKEND = "django-db"
CELERY_RESULT_EXTENDED = True
CELERY_TASK_DEFAULT_QUEUE = "maintenance"
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_PUBLISH_RETRY = False
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TIMEZONE = "UTC"
CELERY_ENABLE_UTC = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_SEND_TASK_EVENTS = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False
FLOWER_URL = env.text("FLOWER_URL", "")

# --- scheduling (architecture §2 and §6; seconds) ------------------------------------------------

LOOK_AHEAD_S = env.seconds("LOOK_AHEAD_S", 75, low=1, high=240)
PLACE_LEAD_S = env.seconds("PLACE_LEAD_S", 60, low=0, high=240)
PREPARE_LEAD_S = env.seconds("PREPARE_LEAD_S", 5, low=0, high=60)
# Slices of the jobs that schedulers share out. A job's slice is stored: to change the number,
# rewrite schedule_cursors.shard.
SHARDS = env.integer("SHARDS", 64, low=1, high=4_096)
# How long a scheduler keeps its shards without a renewal; renewed every SHARD_TICK_S. Far below the
# look-ahead, so that a dead scheduler's shards are planned by others long before they fall due.
SHARD_TERM_S = env.seconds("SHARD_TERM_S", 6, low=1, high=60)
SHARD_TICK_S = env.seconds("SHARD_TICK_S", 1.5, low=0.1, high=20)
PLANNER_BATCH = env.integer("PLANNER_BATCH", 5_000, low=1, high=10_000)
DISPATCH_BATCH = env.integer("DISPATCH_BATCH", 2_500, low=1, high=10_000)
# Each scheduler duty that has not finished a round for this long is stale, and beat exits.
DUTY_STALE_S = env.seconds("DUTY_STALE_S", 60, low=5, high=3_600)

LEASE_S = env.seconds("LEASE_S", 30, low=3, high=600)
HEARTBEAT_S = env.seconds("HEARTBEAT_S", 10, low=0.5, high=200)
# A worker freezes its containers this long before the lease ends, the warden kills this long.
WORKER_MARGIN_S = env.seconds("WORKER_MARGIN_S", 10, low=0.5, high=300)
WARDEN_MARGIN_S = env.seconds("WARDEN_MARGIN_S", 5, low=0.3, high=300)
# The reaper takes a run this long after its session's lease has ended.
REAP_AFTER_S = env.seconds("REAP_AFTER_S", 2, low=0, high=60)
# A session silent for this long gets nothing new.
SILENT_S = env.seconds("SILENT_S", 5, low=1, high=60)
MAX_LEASE_LOSSES = env.integer("MAX_LEASE_LOSSES", 5, low=1, high=100)
# For the test that the fence is needed (docs/chaos.md): completions are taken whatever their fence.
# Refused unless DEBUG is on, which production never is.
UNSAFE_NO_FENCE_GUARD = env.boolean("UNSAFE_NO_FENCE_GUARD", False)

WORKER_SLOTS = env.integer("WORKER_SLOTS", 8, low=1, high=1_000)
WORKER_PREPARED_LIMIT = env.integer("WORKER_PREPARED_LIMIT", WORKER_SLOTS, low=0, high=10_000)
WORKER_REGION = env.text("WORKER_REGION", "default")
WORKER_TIERS = env.words("WORKER_TIERS", ["container"])
WORKER_DRAIN_S = env.seconds("WORKER_DRAIN_S", 600, low=0, high=86_400)
DEADLINES_DIR = Path(env.text("DEADLINES_DIR", f"/dev/shm/{INSTANCE}"))  # noqa: S108 – tmpfs
DOCKER_HOST = env.text("DOCKER_HOST", "unix:///var/run/docker.sock")

OUTPUT_TAIL_BYTES = env.integer("OUTPUT_TAIL_BYTES", 16_384, low=0, high=65_536)
RETENTION_DAYS = env.integer("RETENTION_DAYS", 30, low=1, high=3_650)
PARTITION_DAYS_AHEAD = env.integer("PARTITION_DAYS_AHEAD", 14, low=2, high=60)

# --- notifications (docs/notifications.md) --------------------------------------------------------

# For development and tests alone: http, any port, and addresses inside this network. A system check
# refuses it where HTTPS is on.
WEBHOOK_ALLOW_PRIVATE = env.boolean("WEBHOOK_ALLOW_PRIVATE", False)
# http beside https, where receivers have no certificate: what is sent can then be read on the way.
WEBHOOK_ALLOW_HTTP = env.boolean("WEBHOOK_ALLOW_HTTP", WEBHOOK_ALLOW_PRIVATE)
# Ports beside the scheme's own that webhooks may go to.
WEBHOOK_PORTS = [int(port) for port in env.words("WEBHOOK_PORTS", ["8443"])]
# Public networks that webhooks may not reach all the same, such as this installation's own.
WEBHOOK_REFUSED_NETWORKS = env.networks("WEBHOOK_REFUSED_NETWORKS")
# One attempt in all: look-up, connection, request and answer.
WEBHOOK_TIMEOUT_S = env.seconds("WEBHOOK_TIMEOUT_S", 15, low=1, high=60)
WEBHOOK_MAX_ENDPOINTS = env.integer("WEBHOOK_MAX_ENDPOINTS", 20, low=1, high=1_000)
# Attempts under way at once: to one receiver, and of all schedulers together. A receiver that fails
# gets one at a time, and those that fail get half of all at most.
WEBHOOK_CONCURRENCY = env.integer("WEBHOOK_CONCURRENCY", 4, low=1, high=100)
NOTIFICATION_SLOTS = env.integer("NOTIFICATION_SLOTS", 32, low=2, high=1_000)
# A claimed delivery that nobody has reported on after this long is due again. Above the time-out,
# so that one attempt has ended before the next begins.
NOTIFICATION_CLAIM_S = env.seconds("NOTIFICATION_CLAIM_S", 60, low=5, high=600)
# How long a secret that was replaced goes on signing beside the new one.
WEBHOOK_SECRET_OVERLAP_S = env.seconds("WEBHOOK_SECRET_OVERLAP_S", 86_400, low=0, high=604_800)

EMAIL_BACKEND = env.text("EMAIL_BACKEND", "django.core.mail.backends.console.EmailBackend")
EMAIL_HOST = env.text("EMAIL_HOST", "localhost")
EMAIL_PORT = env.integer("EMAIL_PORT", 25, low=1, high=65_535)
EMAIL_HOST_USER = env.text("EMAIL_HOST_USER", "")
EMAIL_HOST_PASSWORD = env.text("EMAIL_HOST_PASSWORD", "")
EMAIL_USE_TLS = env.boolean("EMAIL_USE_TLS", False)
EMAIL_TIMEOUT = 15
EMAIL_FILE_PATH = env.text("EMAIL_FILE_PATH", str(BASE_DIR / ".local" / "mail"))
DEFAULT_FROM_EMAIL = env.text("DEFAULT_FROM_EMAIL", "scheduler@localhost")

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": env.text("LOG_LEVEL", "INFO")},
    "loggers": {
        # A line for each 4xx, and a traceback for each foreign Host, are what strangers can make
        # us write; the access log has them in a line.
        "django.request": {"level": "ERROR"},
        "django.security.DisallowedHost": {"handlers": [], "propagate": False},
    },
}
