"""Examples of jobs for the OpenAPI document; a test sends and compares them."""

NEW_JOB = {
    "name": "Daily report",
    "labels": {"team": "billing"},
    "schedule": {"cron": "0 9 * * MON-FRI", "time_zone": "Asia/Kolkata"},
    "task": {
        "image": "registry.example/acme/report:3",
        "args": ["--daily"],
        "env": {"REGION": "in"},
        "timeout_s": 900,
    },
    "retry": {
        "max_attempts": 3,
        "backoff": "exponential",
        "exit_codes": {"fail": ["64-78"], "ignore": ["99"]},
    },
    "overlap": "skip",
    "misfire": {"policy": "run_once", "deadline_s": 3600},
    "late_after_s": 300,
    "auto_pause_after": 10,
}

JOB_IN_LIST = {
    "job_id": "7d0c6a52-6f6e-4c8c-9a5e-0f3a1f3d3c11",
    "version": 1,
    "name": "Daily report",
    "description": "",
    "labels": {"team": "billing"},
    "schedule": {"cron": "0 9 * * MON-FRI", "time_zone": "Asia/Kolkata"},
    "task": {
        "image": "registry.example/acme/report:3",
        "args": ["--daily"],
        "env": {"REGION": "in"},
        "timeout_s": 900,
        "resources": {"cpu": 1.0, "memory_mb": 512},
    },
    "retry": {
        "max_attempts": 3,
        "backoff": "exponential",
        "base_s": 5.0,
        "max_s": 3600.0,
        "jitter": "full",
        "exit_codes": {"fail": ["64-78"], "ignore": ["99"]},
    },
    "overlap": "skip",
    "queue_limit": 10,
    "enabled": True,
    "start_at": None,
    "end_at": None,
    "dst": {"gap": "next_valid", "fold": "first"},
    "misfire": {
        "policy": "run_once",
        "grace_s": 60,
        "deadline_s": 3600,
        "max_catch_up": 100,
    },
    "pause": None,
    "resume": {"catch_up": "none"},
    "late_after_s": 300,
    "auto_pause_after": 10,
    "next_run_at": "2026-12-01T03:30:00Z",
    "created_at": "2026-11-30T12:00:00.123456Z",
    "updated_at": "2026-11-30T12:00:00.123456Z",
}

JOB = {
    **JOB_IN_LIST,
    "next_runs": [
        "2026-12-01T03:30:00Z",
        "2026-12-02T03:30:00Z",
        "2026-12-03T03:30:00Z",
        "2026-12-04T03:30:00Z",
        "2026-12-07T03:30:00Z",
    ],
    "next_occurrences": [
        {
            "scheduled_for": f"2026-12-{day}T03:30:00Z",
            "local": f"2026-12-{day}T09:00:00",
            "offset": "+05:30",
            "notes": [],
        }
        for day in ("01", "02", "03", "04", "07")
    ],
}

JOB_PAGE = {"jobs": [JOB_IN_LIST], "next_cursor": None}

CHANGE = {"schedule": {"cron": "30 9 * * MON-FRI"}, "task": {"timeout_s": 1200}}

CHANGED_JOB = {
    **JOB,
    "version": 2,
    "schedule": {"cron": "30 9 * * MON-FRI", "time_zone": "Asia/Kolkata"},
    "task": {**JOB["task"], "timeout_s": 1200},  # type: ignore[dict-item]
    "updated_at": "2026-11-30T12:05:00.654321Z",
    "next_run_at": "2026-12-01T04:00:00Z",
    "next_runs": [
        "2026-12-01T04:00:00Z",
        "2026-12-02T04:00:00Z",
        "2026-12-03T04:00:00Z",
        "2026-12-04T04:00:00Z",
        "2026-12-07T04:00:00Z",
    ],
    "next_occurrences": [
        {
            "scheduled_for": f"2026-12-{day}T04:00:00Z",
            "local": f"2026-12-{day}T09:30:00",
            "offset": "+05:30",
            "notes": [],
        }
        for day in ("01", "02", "03", "04", "07")
    ],
}

PREVIEW_REQUEST = {
    "schedule": {"cron": "30 2 * * *", "time_zone": "America/New_York"},
    "after": "2026-03-07T12:00:00Z",
    "count": 2,
}

PREVIEW = {
    "occurrences": [
        {
            "scheduled_for": "2026-03-08T07:00:00Z",
            "local": "2026-03-08T03:00:00",
            "offset": "-04:00",
            "notes": ["dst_shifted"],
        },
        {
            "scheduled_for": "2026-03-09T06:30:00Z",
            "local": "2026-03-09T02:30:00",
            "offset": "-04:00",
            "notes": [],
        },
    ],
    "description": "At 02:30 (America/New_York)",
    "warnings": [
        {
            "code": "dst_exposed",
            "message": "on 2026-03-08 the clock in America/New_York goes from 02:00 to 03:00: "
            "times in between fire once, at 03:00",
        }
    ],
}
