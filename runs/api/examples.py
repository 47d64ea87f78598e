"""Examples of runs for the OpenAPI document; a test compares them with real answers."""

_RUN_ID = "019ad8e5-5f00-7c3a-9b1e-5c1f0a2d7e44"

NEW_RUN = {
    "run_id": _RUN_ID,
    "job_id": "7d0c6a52-6f6e-4c8c-9a5e-0f3a1f3d3c11",
    "job_version": 1,
    "trigger": "manual",
    "replay_of": None,
    "replaced_by": None,
    "replayed_by": None,
    "status": "queued",
    "scheduled_for": "2026-12-01T10:00:00.128Z",
    "due_at": "2026-12-01T10:00:00.128Z",
    "ready_at": "2026-12-01T10:00:00.128Z",
    "attempt": 1,
    "failures": 0,
    "lease_losses": 0,
    "created_at": "2026-12-01T10:00:00.129001Z",
    "placed_at": None,
    "leased_at": None,
    "prepared_at": None,
    "go_at": None,
    "started_at": None,
    "finished_at": None,
    "cancel_requested_at": None,
    "skip_reason": None,
    "outcome": None,
    "exit_code": None,
}

CANCELLED_RUN = {
    **NEW_RUN,
    "status": "cancelled",
    "outcome": "cancelled",
    "cancel_requested_at": "2026-12-01T10:00:00.700000Z",
    "finished_at": "2026-12-01T10:00:00.700000Z",
}

FINISHED_RUN = {
    **NEW_RUN,
    "trigger": "schedule",
    "status": "succeeded",
    "scheduled_for": "2026-12-01T03:30:00Z",
    "due_at": "2026-12-01T03:30:00Z",
    "ready_at": "2026-12-01T03:30:00Z",
    "created_at": "2026-12-01T03:28:45.020000Z",
    "placed_at": "2026-12-01T03:29:00.250000Z",
    "leased_at": "2026-12-01T03:29:55.010000Z",
    "prepared_at": "2026-12-01T03:29:55.080000Z",
    "go_at": "2026-12-01T03:30:00.004000Z",
    "started_at": "2026-12-01T03:30:00.156000Z",
    "finished_at": "2026-12-01T03:30:02.312000Z",
    "outcome": "succeeded",
    "exit_code": 0,
}

RUN_PAGE = {"runs": [FINISHED_RUN], "next_cursor": None}

RUN_DETAIL = {
    **FINISHED_RUN,
    "message": "exit code 0",
    "node": "node-7",
    "lease_expires_at": None,
    "waiting_for": None,
    "lag": {
        "total_s": 0.156,
        "stages_s": {"placed": 0.0, "leased": 0.0, "prepared": 0.0, "go": 0.004, "started": 0.152},
    },
    "output_tail": "42 invoices written\n",
    "output_truncated": False,
    "attempts": [
        {
            "attempt": 1,
            "fence": 8812,
            "node": "node-7",
            "placed_at": "2026-12-01T03:29:00.250000Z",
            "leased_at": "2026-12-01T03:29:55.010000Z",
            "prepared_at": "2026-12-01T03:29:55.080000Z",
            "go_at": "2026-12-01T03:30:00.004000Z",
            "started_at": "2026-12-01T03:30:00.156000Z",
            "finished_at": "2026-12-01T03:30:02.290000Z",
            "outcome": "succeeded",
            "exit_code": 0,
            "message": "exit code 0",
            "image_digest": "sha256:" + "2f1cbd4a8c1f5f9c" * 4,
            "output_tail": "42 invoices written\n",
            "output_truncated": False,
        }
    ],
}

BACKFILL_REQUEST = {
    "from": "2026-11-23T00:00:00Z",
    "to": "2026-11-30T00:00:00Z",
    "rate_per_minute": 10,
}

BACKFILL = {
    "created": 4,
    "existing": 1,
    "first_ready_at": "2026-12-01T10:00:00.123456Z",
    "last_ready_at": "2026-12-01T10:00:18.123456Z",
}

_DEAD_RUN_ID = "019ad780-f500-7be1-8d02-0a4d1c9e5b7f"

REPLAY_RUN = {**NEW_RUN, "trigger": "replay", "replay_of": _DEAD_RUN_ID}

DEAD_LETTER_PAGE = {
    "dead_letters": [
        {
            **FINISHED_RUN,
            "run_id": _DEAD_RUN_ID,
            "status": "failed",
            "attempt": 3,
            "failures": 3,
            "outcome": "non_zero_exit",
            "exit_code": 1,
            "message": "exit code 1",
        }
    ],
    "next_cursor": None,
}

REPLAY_REQUEST = {
    "job_id": "7d0c6a52-6f6e-4c8c-9a5e-0f3a1f3d3c11",
    "outcome": "non_zero_exit",
    "from": "2026-11-23T00:00:00Z",
    "to": "2026-12-01T00:00:00Z",
    "rate_per_minute": 10,
    "dry_run": False,
}

REPLAYS = {
    "dry_run": False,
    "replayed": 1,
    "more": False,
    "runs": [
        {
            "dead_letter": _DEAD_RUN_ID,
            "job_id": "7d0c6a52-6f6e-4c8c-9a5e-0f3a1f3d3c11",
            "run_id": _RUN_ID,
        }
    ],
}
