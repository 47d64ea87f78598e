"""The contract between dispatcher and worker: lease, go, heartbeat, complete; many runs a call.

Every write by a worker stands here, guarded by (run, fence, session) with the row count read. A
worker that lost its lease can therefore change nothing, however late it wakes up.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction

from runs import store
from runs.domain.backoff import RetryPolicy
from runs.domain.ending import Ending, decide_ending
from runs.domain.outcome import Outcome
from runs.domain.overlap import GoDecision, Overlap, OverlapVerdict, decide_overlap
from runs.domain.state import FINAL, RunStatus
from runs.notifications import LEAST_LATE_S, note_run_ends
from runs.run_metrics import count_endings, count_final, count_starts
from runs.store import RunEventRow
from scheduler_project.lib.events import emit


@dataclass(frozen=True)
class SessionOffer:
    """What a worker process offers when it registers."""

    session_id: UUID
    node: str
    celery_name: str
    pid: int
    queue: str
    region: str
    tiers: list[str]
    slots: int
    prepared_limit: int


@dataclass(frozen=True)
class RunRef:
    """Both columns of a run's key."""

    run_id: UUID
    scheduled_for: datetime


@dataclass(frozen=True)
class Leased:
    """A lease: everything the worker needs to prepare the container. Times in seconds."""

    run_id: UUID
    scheduled_for: datetime
    job_id: UUID
    tenant_id: UUID
    tier: str
    attempt: int
    fence: int
    ready_in_s: float
    task: dict[str, Any]
    task_version: int
    allow_root: bool


@dataclass(frozen=True)
class Refused:
    """No lease, and why: `gone`, or the status that the row has."""

    run_id: UUID
    why: str


@dataclass(frozen=True)
class GoRequest:
    """A prepared run that asks whether it may start now."""

    run_id: UUID
    scheduled_for: datetime
    job_id: UUID
    fence: int
    prepared_ago_s: float
    task_version: int


class GoAnswer(StrEnum):
    """The answer to a request for the go."""

    GO = "go"
    SKIP = "skip"
    BLOCK = "block"
    NOT_YET = "not_yet"  # the database's clock says it is too early; wait and ask again
    LEASE_LOST = "lease_lost"
    TASK_CHANGED = "task_changed"  # the job's task was edited: prepare again


@dataclass(frozen=True)
class GoReply:
    """The answer, and for NOT_YET how long to wait (seconds)."""

    answer: GoAnswer
    wait_s: float = 0.0


@dataclass(frozen=True)
class OwnedRun:
    """A run that the database says this session owns."""

    run_id: UUID
    scheduled_for: datetime
    job_id: UUID
    status: str
    fence: int
    attempt: int
    cancel_requested: bool
    ready_in_s: float


@dataclass(frozen=True)
class Beat:
    """A heartbeat's answer. `alive` False: the lease is lost, and with it every run."""

    alive: bool
    draining: bool = False
    owned: list[OwnedRun] = field(default_factory=list)


@dataclass(frozen=True)
class Completion:
    """How an attempt ended, as its worker saw it. Instants are the engine's."""

    run_id: UUID
    scheduled_for: datetime
    job_id: UUID
    fence: int
    outcome: Outcome
    exit_code: int | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    output: bytes = b""
    output_truncated: bool = False
    image_digest: str = ""


class CompleteAnswer(StrEnum):
    """Whether a completion was taken."""

    OK = "ok"
    STALE_FENCE = "stale_fence"


# --- session ----------------------------------------------------------------------------------


def open_session(offer: SessionOffer, *, accepting: bool) -> None:
    """Register one life of a worker process; its lease begins now."""
    store.execute("open_session", lease_s=settings.LEASE_S, accepting=accepting, **vars(offer))


def heartbeat(session_id: UUID, *, accepting: bool, reason: str) -> Beat:
    """Extend the session's lease and return what the database says the session owns.

    `accepting` False says that the worker can't vouch for containers now, with the reason: it
    gets nothing new.
    """
    return _beat("renew_session", session_id, accepting, reason, lease_s=settings.LEASE_S)


def look(session_id: UUID, *, accepting: bool, reason: str) -> Beat:
    """As `heartbeat`, without extending the lease: the look of each second."""
    return _beat("see_session", session_id, accepting, reason)


def _beat(statement: str, session_id: UUID, accepting: bool, reason: str, **extra: Any) -> Beat:
    rows = store.fetch(
        statement, session_id=session_id, accepting=accepting, reason=reason[:200], **extra
    )
    if not rows:  # ended, expired or unknown: nothing of this life counts any more
        return Beat(alive=False)
    owned = store.fetch("runs_of_session", session_id=session_id)
    return Beat(
        alive=True,
        draining=rows[0].draining,
        owned=[OwnedRun(**row._asdict()) for row in owned],
    )


def drain(session_id: UUID) -> None:
    """Say that the session takes nothing new; what it has not started is placed elsewhere."""
    store.execute("drain_session", session_id=session_id)


def end_session(session_id: UUID) -> bool:
    """Put back what the session has not started, and close it.

    False when it still runs something, or was given a run at the last moment: then the reaper
    takes that and closes the session. Call it when no thread works on a run any more.
    """
    with transaction.atomic():
        store.execute("put_back_unstarted", session_id=session_id)
        return store.execute("end_session", session_id=session_id) == 1


# --- lease ------------------------------------------------------------------------------------


def lease(session_id: UUID, refs: Sequence[RunRef]) -> dict[UUID, Leased | Refused]:
    """Lease placed runs; each lease draws a new fence. Asked twice, the second is refused."""
    keys = store.columns(refs, "run_id", "scheduled_for")
    rows = store.fetch("lease_runs", session_id=session_id, **keys)
    answers: dict[UUID, Leased | Refused] = {row.run_id: Leased(**row._asdict()) for row in rows}
    missing = [ref for ref in refs if ref.run_id not in answers]
    if missing:
        says = {
            row.run_id: row.status
            for row in store.fetch(
                "refused_runs", **store.columns(missing, "run_id", "scheduled_for")
            )
        }
        for ref in missing:
            answers[ref.run_id] = Refused(ref.run_id, says.get(ref.run_id, "gone"))
    return answers


def hand_back(session_id: UUID, runs: Sequence[Leased]) -> set[UUID]:
    """Put leased runs that this session can't start back into the fair queue."""
    rows = store.fetch(
        "hand_back_runs",
        session_id=session_id,
        **store.columns(runs, "run_id", "scheduled_for", "fence"),
    )
    handed_back = {row.run_id for row in rows}
    store.record_events(
        [
            _event(run, "handed_back", session_id, attempt=run.attempt)
            for run in runs
            if run.run_id in handed_back
        ]
    )
    return handed_back


# --- go ---------------------------------------------------------------------------------------


def go(session_id: UUID, node: str, requests: Sequence[GoRequest]) -> dict[UUID, GoReply]:
    """Decide for prepared runs whether they start now, wait, are skipped or blocked.

    One transaction: lock the guards, then (with a new snapshot) lock and read the runs, decide,
    write. Asked again after an unknown answer it answers GO again for the same fence.
    """
    with transaction.atomic():
        store.execute("ensure_guards", job_ids=sorted({r.job_id for r in requests}))
        holders = store.lock_guards(request.job_id for request in requests)
        rows = store.fetch(
            "read_runs_for_go",
            session_id=session_id,
            **store.columns(requests, "run_id", "scheduled_for", "task_version"),
        )
        replies = _decide_go(session_id, {r.run_id: r for r in requests}, rows, holders, node)
    count_final(RunStatus.SKIPPED, sum(r.answer is GoAnswer.SKIP for r in replies.values()))
    for request in requests:  # deleted by an edit, or by retention
        replies.setdefault(request.run_id, GoReply(GoAnswer.LEASE_LOST))
    return replies


def _decide_go(
    session_id: UUID,
    requests: dict[UUID, GoRequest],
    rows: Sequence[Any],
    holders: dict[UUID, UUID | None],
    node: str,
) -> dict[UUID, GoReply]:
    replies: dict[UUID, GoReply] = {}
    going: list[GoRequest] = []
    verdicts: dict[UUID, OverlapVerdict] = {}
    newly_blocked: dict[UUID, int] = {}
    for row in sorted(rows, key=lambda row: (row.scheduled_for, row.run_id)):
        request = requests[row.run_id]
        reply = _refusal(session_id, request, row)
        if reply is None:
            verdict = _verdict(row, holders, newly_blocked)
            verdicts[row.run_id] = verdict
            if verdict.takes_guard:
                holders[row.job_id] = row.run_id
            if verdict.decision is GoDecision.SKIP and holders.get(row.job_id) == row.run_id:
                # A guard held by a run that never begins is free for the others of this batch,
                # unless it is promised to a blocked one.
                holders[row.job_id] = row.run_id if row.overlap == Overlap.QUEUE else None
            if verdict.decision is GoDecision.GO:
                # The version whose task runs: as at the go, not as at the preparation.
                going.append(replace(request, task_version=row.task_version))
            if verdict.decision is GoDecision.BLOCK:
                newly_blocked[row.job_id] = newly_blocked.get(row.job_id, 0) + 1
            reply = GoReply(GoAnswer(verdict.decision.value))
        replies[row.run_id] = reply
    _write_go(going, verdicts, requests, node)
    return replies


def _verdict(
    row: Any, holders: dict[UUID, UUID | None], newly_blocked: dict[UUID, int]
) -> OverlapVerdict:
    if row.job_is_deleted:
        # The delete finishes what waits, but an attempt that failed at that very moment was
        # running when the delete looked, and queued for a retry afterwards.
        return OverlapVerdict(GoDecision.SKIP, skip_reason="job_deleted")
    if row.is_too_late:
        return OverlapVerdict(GoDecision.SKIP, skip_reason="deadline")
    return decide_overlap(
        row.run_id,
        Overlap(row.overlap),
        holders.get(row.job_id),
        blocked=row.blocked + newly_blocked.get(row.job_id, 0),
        queue_limit=row.queue_limit,
        waits_its_turn=row.is_caught_up,
    )


def _refusal(session_id: UUID, request: GoRequest, row: Any) -> GoReply | None:
    """Return why this run can't be decided on now, or the repeated GO; None: decide."""
    if row.fence != request.fence or row.lease_owner != session_id or not row.session_is_live:
        return GoReply(GoAnswer.LEASE_LOST)
    if row.status == RunStatus.RUNNING:  # our first answer was lost on the way
        return GoReply(GoAnswer.GO)
    if row.status != RunStatus.LEASED:
        return GoReply(GoAnswer.LEASE_LOST)
    if row.ready_in_s > 0:
        return GoReply(GoAnswer.NOT_YET, wait_s=row.ready_in_s)
    if not row.is_same_task:
        return GoReply(GoAnswer.TASK_CHANGED)
    return None


def _write_go(
    going: Sequence[GoRequest],
    verdicts: dict[UUID, OverlapVerdict],
    requests: dict[UUID, GoRequest],
    node: str,
) -> None:
    if going:
        written = store.execute(
            "go_runs",
            node=node,
            **store.columns(going, "run_id", "scheduled_for", "prepared_ago_s", "task_version"),
        )
        # We hold every row's lock and have read its status: fewer rows would be a fault of ours.
        assert written == len(going), f"{written} of {len(going)} runs went"
    taking = [request for request in going if verdicts[request.run_id].takes_guard]
    if taking:
        store.execute("take_guards", **store.columns(taking, "job_id", "run_id", "fence"))
    blocked = _with_decision(GoDecision.BLOCK, verdicts, requests)
    if blocked:
        store.execute("block_runs", **store.columns(blocked, "run_id", "scheduled_for"))
    skipped = _with_decision(GoDecision.SKIP, verdicts, requests)
    if skipped:
        reasons = [verdicts[request.run_id].skip_reason for request in skipped]
        store.execute(
            "skip_runs", reasons=reasons, **store.columns(skipped, "run_id", "scheduled_for")
        )
        note_run_ends(skipped)
        # One that was too late may hold the guard, passed to it while it was blocked.
        store.release_guards((request.job_id, request.run_id) for request in skipped)
        store.release_guards((request.job_id, request.run_id) for request in skipped)


def _with_decision(
    decision: GoDecision, verdicts: dict[UUID, OverlapVerdict], requests: dict[UUID, GoRequest]
) -> list[GoRequest]:
    return [requests[run_id] for run_id, v in verdicts.items() if v.decision is decision]


@dataclass(frozen=True)
class Start:
    """A container's start by the engine's clock."""

    run_id: UUID
    scheduled_for: datetime
    fence: int
    started_at: datetime


def record_starts(session_id: UUID, starts: Sequence[Start]) -> int:
    """Note when containers started; a run that is not ours under that fence is left alone."""
    with transaction.atomic():
        rows = store.fetch(
            "record_starts",
            session_id=session_id,
            **store.columns(starts, "run_id", "scheduled_for", "fence", "started_at"),
        )
        # Most are on time, and cost nothing here.
        note_run_ends(row for row in rows if row.lag_s is not None and row.lag_s > LEAST_LATE_S)
    count_starts(rows)
    return len(rows)


# --- complete ---------------------------------------------------------------------------------


def complete(
    session_id: UUID, node: str, completions: Sequence[Completion]
) -> dict[UUID, CompleteAnswer]:
    """Write how attempts ended and what follows: final, queued again, or refused as stale.

    A container that ended by itself may be completed late, even after the session's lease ended,
    while fence and owner still match: nobody else has taken the run, so its result is true.
    Asked again after an unknown answer it says OK again.
    """
    with transaction.atomic():
        store.lock_guards(completion.job_id for completion in completions)
        rows = {
            row.run_id: row
            for row in store.fetch(
                "read_runs_for_completion",
                **store.columns(completions, "run_id", "scheduled_for", "fence"),
            )
        }
        taken: list[tuple[Completion, Any, Ending]] = []
        answers: dict[UUID, CompleteAnswer] = {}
        for completion in completions:
            row = rows.get(completion.run_id)
            answers[completion.run_id] = _accept(session_id, completion, row)
            if row is not None and _is_ours(session_id, completion, row):
                taken.append((completion, row, _ending(completion, row)))
        _write_endings(session_id, node, taken)
        note_run_ends(row for _, row, ending in taken if ending.status in FINAL)
        _record_stale(session_id, completions, answers, rows)
    count_endings(taken)
    return answers


def _is_ours(session_id: UUID, completion: Completion, row: Any) -> bool:
    return (
        row.fence == completion.fence
        and row.lease_owner == session_id
        and row.status in (RunStatus.LEASED, RunStatus.RUNNING)
    )


def _accept(session_id: UUID, completion: Completion, row: Any) -> CompleteAnswer:
    if row is None:
        return CompleteAnswer.STALE_FENCE
    if _is_ours(session_id, completion, row):
        return CompleteAnswer.OK
    # The first answer was lost on the way: this very attempt has been completed already. An
    # attempt that the reaper ended has another fence on its run by then.
    repeated = row.attempt_has_ended and row.fence == completion.fence
    return CompleteAnswer.OK if repeated else CompleteAnswer.STALE_FENCE


def _ending(completion: Completion, row: Any) -> Ending:
    return decide_ending(
        completion.outcome,
        RetryPolicy.from_json(row.retry),
        failures=row.failures,
        losses=row.lease_losses,
        max_losses=settings.MAX_LEASE_LOSSES,
        may_run_again=not row.job_is_deleted,
        cancel_requested=row.cancel_requested,
        random_unit=random.random(),
    )


def _write_endings(
    session_id: UUID, node: str, taken: Sequence[tuple[Completion, Any, Ending]]
) -> None:
    if not taken:
        return
    completions = [completion for completion, _, _ in taken]
    keys = store.columns(completions, "run_id", "scheduled_for", "fence")
    endings = [ending for _, _, ending in taken]
    outcomes = [completion.outcome.code.value for completion in completions]
    ends = store.columns(completions, "started_at", "exit_code")
    written = store.fetch(
        "complete_runs",
        session_id=session_id,
        statuses=[ending.status.value for ending in endings],
        outcomes=outcomes,
        **store.columns(endings, "attempt_step", "failure_step", "loss_step", "wait_s"),
        **keys,
        **ends,
    )
    # We hold every row's lock and have read fence, owner and status under it.
    assert len(written) == len(taken), f"{len(written)} of {len(taken)} completed"
    attempts = [row.attempt for _, row, _ in taken]
    store.execute(
        "end_attempts",
        session_id=session_id,
        node=node,
        attempts=attempts,
        outcomes=outcomes,
        messages=[_storable(completion.outcome.message) for completion in completions],
        **keys,
        **ends,
        **store.columns(completions, "finished_at", "image_digest"),
    )
    printed = [(c, row) for c, row, _ in taken if c.output or c.output_truncated]
    if printed:
        store.execute(
            "insert_outputs",
            run_ids=[c.run_id for c, _ in printed],
            scheduled_fors=[c.scheduled_for for c, _ in printed],
            attempts=[row.attempt for _, row in printed],
            tails=[c.output for c, _ in printed],
            truncateds=[c.output_truncated for c, _ in printed],
        )
    store.release_guards(
        (completion.job_id, completion.run_id)
        for completion, _, ending in taken
        if ending.status in FINAL
    )


def _storable(text: str) -> str:
    """The text without what PostgreSQL refuses: an engine may quote any byte of a program."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()


def _record_stale(
    session_id: UUID,
    completions: Sequence[Completion],
    answers: dict[UUID, CompleteAnswer],
    rows: dict[UUID, Any],
) -> None:
    stale = [c for c in completions if answers[c.run_id] is CompleteAnswer.STALE_FENCE]
    for completion in stale:
        emit(
            "complete.stale_fence",
            "A late completion was refused: its lease is over.",
            run_id=completion.run_id,
            fence=completion.fence,
        )
    store.record_events([_event(c, "stale_fence", session_id) for c in stale if c.run_id in rows])


def _event(
    run: Leased | Completion, kind: str, session_id: UUID, attempt: int | None = None
) -> RunEventRow:
    return RunEventRow(
        run_id=run.run_id,
        scheduled_for=run.scheduled_for,
        kind=kind,
        attempt=attempt,
        fence=run.fence,
        session=session_id,
        detail=json.dumps({}),
    )
