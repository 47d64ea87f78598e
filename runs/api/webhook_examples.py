"""Examples of webhooks for the OpenAPI document; a test sends and compares them."""

NEW_WEBHOOK = {
    "url": "https://hooks.acme.example/scheduler",
    "events": ["run.failed", "run.late", "job.auto_paused"],
    "description": "On-call",
}

WEBHOOK = {
    "webhook_id": "0b4c0f0e-2f0a-4a53-9f6c-5d6c1b8b6d3e",
    "url": "https://hooks.acme.example/scheduler",
    "description": "On-call",
    "events": ["run.failed", "run.late", "job.auto_paused"],
    "enabled": True,
    "off_reason": None,
    "off_at": None,
    "failing_since": None,
    "last_success_at": "2026-12-01T03:31:10.120944Z",
    "old_secret_until": None,
    "version": 1,
    "created_at": "2026-11-30T12:00:00.123456Z",
    "updated_at": "2026-11-30T12:00:00.123456Z",
}

WEBHOOK_PAGE = {"webhooks": [WEBHOOK], "next_cursor": None}

CHANGE = {"events": ["run.failed"], "enabled": True}

CHANGED_WEBHOOK = {**WEBHOOK, "events": ["run.failed"], "version": 2}

SECRET = {"secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}

ROTATED_WEBHOOK = {**WEBHOOK, "old_secret_until": "2026-12-02T12:00:00Z", "version": 3}

PING = {"message_id": "msg_5b8f4a1f0c9b4b7a8d3a2c1e0f9d8b7a"}

DELIVERY = {
    "delivery_id": "b6f3e0a4-4f6a-4a57-8d2b-6f2a9d7f4c10",
    "message_id": "msg_0f3c7a52b1de4b7f9a6c1d2e3f405162",
    "event": "run.failed",
    "status": "pending",
    "attempts": 1,
    "created_at": "2026-12-01T03:31:09.870123Z",
    "next_attempt_at": "2026-12-01T03:31:15.410201Z",
    "finished_at": None,
    "last_status_code": 503,
    "last_error": "status",
}

DELIVERY_DETAIL = {
    **DELIVERY,
    "payload": {
        "run_id": "019ad795-4a40-7d5e-8f20-3a9e4c1b7d62",
        "job_id": "7d0c6a52-6f6e-4c8c-9a5e-0f3a1f3d3c11",
        "status": "failed",
        "exit_code": 1,
    },
    "attempt_log": [
        {
            "attempt": 1,
            "at": "2026-12-01T03:31:10.120944Z",
            "duration_ms": 184,
            "status_code": 503,
            "error": "status",
            "detail": "",
            "answer": "upstream is restarting",
        }
    ],
}

DELIVERY_PAGE = {"deliveries": [DELIVERY], "next_cursor": None}

REDELIVERED = {**DELIVERY, "last_status_code": 503}
