"""Dead letters: the runs that failed for good, and running them again."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter
from rest_framework.response import Response

from jobs.errors import JobNotFoundError
from runs.api import examples
from runs.api.queries import id_of, instant_of, one_of
from runs.api.serializers import (
    DeadLetterPageOutput,
    ReplayInput,
    ReplaysOutput,
    RunOutput,
    shown_dead_letter,
    shown_run,
)
from runs.domain.backfill import DEFAULT_RATE_PER_MINUTE
from runs.domain.outcome import FAILED_OUTCOMES
from runs.errors import RunIsNotFinalError, RunNotFoundError
from runs.replays import dead_letters_replay, run_replay
from runs.selectors import DeadLetterFilter, dead_letters_of, last_messages
from scheduler_project.lib.api_view import ApiView
from scheduler_project.lib.openapi import CURSOR, IDEMPOTENCY_KEY, LIMIT, operation
from scheduler_project.lib.pagination import CursorScope, keyset_page, limit_of
from scheduler_project.lib.problems import Problem
from tenants.api.authentication import ApiRequest
from tenants.api.idempotency import idempotent

_FILTERS = ("job_id", "outcome", "from", "to", "replayed")
_FLAGS = {"true": True, "false": False}
_REPLAY = ReplayInput()
_REPLAYS = ReplaysOutput()


class DeadLetterList(ApiView):
    """List the tenant's dead letters, newest first."""

    query_names = {"GET": (*_FILTERS, "cursor", "limit")}

    @operation(
        "List dead letters",
        response=DeadLetterPageOutput,
        example=examples.DEAD_LETTER_PAGE,
        parameters=[
            OpenApiParameter("job_id", UUID, description="Only runs of this job."),
            OpenApiParameter(
                "outcome", str, enum=FAILED_OUTCOMES, description="Only those that ended so."
            ),
            OpenApiParameter(
                "from", datetime, description="Only runs scheduled for this time or later."
            ),
            OpenApiParameter(
                "to", datetime, description="Only runs scheduled for before this time."
            ),
            OpenApiParameter(
                "replayed", bool, description="Only those that have been replayed, or have not."
            ),
            CURSOR,
            LIMIT,
        ],
        problems=["invalid_cursor"],
    )
    def get(self, request: ApiRequest) -> Response:
        """The runs that failed after their last attempt; read one to see all its attempts."""
        filters = {name: self.query.get(name) or "" for name in _FILTERS}
        replayed = one_of(self, "replayed", list(_FLAGS))
        narrowed = DeadLetterFilter(
            job_id=id_of(self, "job_id"),
            outcome=one_of(self, "outcome", FAILED_OUTCOMES),
            since=instant_of(self, "from"),
            until=instant_of(self, "to"),
            is_replayed=None if replayed is None else _FLAGS[replayed],
        )
        page = keyset_page(
            dead_letters_of(request.tenant, narrowed),
            {"scheduled_for": datetime, "run_id": UUID},
            CursorScope("dead_letters", request.tenant.pk, filters),
            self.query.get("cursor"),
            limit_of(self.query.get("limit")),
        )
        messages = last_messages(page.rows)
        letters = [shown_dead_letter(run, messages.get(run.run_id, "")) for run in page.rows]
        return Response({"dead_letters": letters, "next_cursor": page.next_cursor})


class RunReplay(ApiView):
    """Run a run again."""

    rate_classes = {"POST": "run_now"}

    @operation(
        "Replay a run",
        status=201,
        response=RunOutput,
        example=examples.REPLAY_RUN,
        parameters=[IDEMPOTENCY_KEY],
        problems=["run_not_final", "job_is_deleted"],
    )
    @idempotent
    def post(self, request: ApiRequest, run_id: UUID) -> Response:
        """Makes a new run of an ended one, due at once, with the job's task as it is now.

        Its `replay_of` is the run that the schedule, or somebody, made first; its program sees that
        one's `SCHEDULED_FOR`.
        """
        try:
            run = run_replay(request.tenant, run_id)
        except RunNotFoundError:
            raise Problem("not_found") from None
        except RunIsNotFinalError as error:
            raise Problem("run_not_final", f"The run is {error.status}.") from None
        except JobNotFoundError:
            raise Problem("job_is_deleted") from None
        return Response(shown_run(run), status=201, headers={"Location": f"/v1/runs/{run.run_id}"})


class DeadLettersReplay(ApiView):
    """Run dead letters again."""

    rate_classes = {"POST": "run_now"}

    @operation(
        "Replay dead letters",
        status=202,
        response=ReplaysOutput,
        example=examples.REPLAYS,
        request=ReplayInput,
        request_example=examples.REPLAY_REQUEST,
        parameters=[IDEMPOTENCY_KEY],
    )
    @idempotent
    def post(self, request: ApiRequest) -> Response:
        """Of all that match and have not been replayed, oldest first, 500 at most.

        `more` says that further ones match: ask again. With `dry_run` it is only said which would
        be. They fall due at `rate_per_minute` (60 if you don't say).
        """
        said: dict[str, Any] = _REPLAY.run_validation(request.data)
        dry_run = said.get("dry_run", False)
        narrowed = DeadLetterFilter(
            said.get("job_id"), said.get("outcome"), said.get("from"), said.get("to")
        )
        replays = dead_letters_replay(
            request.tenant,
            narrowed,
            rate_per_minute=said.get("rate_per_minute", DEFAULT_RATE_PER_MINUTE),
            dry_run=dry_run,
        )
        answer = {
            "dry_run": dry_run,
            "replayed": 0 if dry_run else len(replays.runs),
            "more": replays.more,
            "runs": [asdict(run) for run in replays.runs],
        }
        return Response(_REPLAYS.to_representation(answer), status=202)
