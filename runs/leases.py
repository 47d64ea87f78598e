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
from runs.domain.outcome import Outcome, judge_exit
from runs.domain.overlap import (
    GoDecision,
    Overlap,
    OverlapVerdict,
    Rival,
    decide_overlap,
    decide_replace,
)
from runs.domain.run_id import scheduled_for_of
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
    replay_of: UUID | None = None

    @property
    def nominal(self) -> datetime:
        """The instant that the program is run for: of a replay, that of the run it repeats."""
        return self.scheduled_for if self.replay_of is None else scheduled_for_of(self.replay_of)


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
    placed_ago_s: float


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
    rows = store.fetch_of_runs("lease_runs", refs, session_id=session_id)
    answers: dict[UUID, Leased | Refused] = {row.run_id: Leased(**row._asdict()) for row in rows}
    missing = [ref for ref in refs if ref.run_id not in answers]
    if missing:
        says = {row.run_id: row.status for row in store.fetch_of_runs("refused_runs", missing)}
        for ref in missing:
            answers[ref.run_id] = Refused(ref.run_id, says.get(ref.run_id, "gone"))
    return answers


def hand_back(session_id: UUID, runs: Sequence[Leased]) -> set[UUID]:
    """Put leased runs that this session can't start back into the fair queue."""
    rows = store.fetch_of_runs("hand_back_runs", runs, "fence", session_id=session_id)
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
        rivals = _lock_rivals(requests, holders)
        rows = store.fetch_of_runs(
            "read_runs_for_go", requests, "task_version", session_id=session_id
        )
        floor = _Floor({r.run_id: r for r in requests}, holders, rivals)
        replies = _decide_go(session_id, floor, rows)
        replaced = _write_go(floor, node)
    count_final(RunStatus.SKIPPED, sum(r.answer is GoAnswer.SKIP for r in replies.values()))
    for run in replaced:
        if run.finished_at is not None:
            count_final(RunStatus(run.status))
    for request in requests:  # deleted by an edit, or by retention
        replies.setdefault(request.run_id, GoReply(GoAnswer.LEASE_LOST))
    return replies


@dataclass
class _Floor:
    """What a batch of requests meets, and what is decided on it; changed as decisions fall."""

    requests: dict[UUID, GoRequest]
    holders: dict[UUID, UUID | None]
    # By job that replaces its runs: those that are not over, beside the ones that ask.
    rivals: dict[UUID, dict[UUID, Rival]]
    verdicts: dict[UUID, OverlapVerdict] = field(default_factory=dict)
    going: list[GoRequest] = field(default_factory=list)
    newly_blocked: dict[UUID, int] = field(default_factory=dict)

    def is_replaced(self, run_id: UUID) -> bool:
        return any(run_id in verdict.replaces for verdict in self.verdicts.values())


def _lock_rivals(
    requests: Sequence[GoRequest], holders: dict[UUID, UUID | None]
) -> dict[UUID, dict[UUID, Rival]]:
    """Lock and return what the requests' jobs have under way or waiting, where runs replace others.

    Locked together with the runs that ask, in run order: locks taken one batch after the other
    would not be in order.
    """
    contested = {
        request.job_id: holder
        for request in requests
        if (holder := holders.get(request.job_id)) not in (None, request.run_id)
    }
    if not contested:
        return {}
    found = store.fetch(
        "lock_rivals",
        job_ids=list(contested),
        holder_ids=list(contested.values()),
        holder_times=[scheduled_for_of(holder) for holder in contested.values() if holder],
        **store.columns(requests, "run_id", "scheduled_for"),
    )
    rivals: dict[UUID, dict[UUID, Rival]] = {}
    for row in found:
        of_job = rivals.setdefault(row.job_id, {})
        of_job[row.run_id] = Rival(row.run_id, row.due_at, row.is_caught_up, row.is_running)
    return rivals


def _decide_go(session_id: UUID, floor: _Floor, rows: Sequence[Any]) -> dict[UUID, GoReply]:
    replies: dict[UUID, GoReply] = {}
    for row in _in_turn(rows):
        reply = _refusal(session_id, floor.requests[row.run_id], row)
        if reply is None and floor.is_replaced(row.run_id):
            reply = GoReply(GoAnswer.LEASE_LOST)
        if reply is None:
            reply = GoReply(GoAnswer(_decide_one(row, floor).decision.value))
        replies[row.run_id] = reply
    return replies


def _in_turn(rows: Sequence[Any]) -> list[Any]:
    """The oldest first; of a job that replaces its runs the newest, which makes the rest needless.

    There, too, what is caught up comes last, in its own order.
    """
    oldest_first = sorted(rows, key=lambda row: (row.scheduled_for, row.run_id))
    replacing = sorted(
        (row for row in rows if row.overlap == Overlap.REPLACE),
        key=lambda row: (row.due_at, row.run_id),
    )
    return [
        *(row for row in oldest_first if row.overlap != Overlap.REPLACE),
        *(row for row in reversed(replacing) if not row.is_caught_up),
        *(row for row in replacing if row.is_caught_up),
    ]


def _decide_one(row: Any, floor: _Floor) -> OverlapVerdict:
    request, holders = floor.requests[row.run_id], floor.holders
    verdict = floor.verdicts[row.run_id] = _verdict(row, floor)
    if verdict.takes_guard:
        holders[row.job_id] = row.run_id
    if verdict.decision is GoDecision.SKIP and holders.get(row.job_id) == row.run_id:
        # A guard held by a run that never begins is free for the others of this batch, unless it
        # is promised to a blocked one.
        holders[row.job_id] = row.run_id if row.overlap == Overlap.QUEUE else None
        floor.rivals.get(row.job_id, {}).pop(row.run_id, None)
    if verdict.decision is GoDecision.GO:
        # The version whose task runs: as at the go, not as at the preparation.
        floor.going.append(replace(request, task_version=row.task_version))
    if verdict.decision is GoDecision.BLOCK:
        floor.newly_blocked[row.job_id] = floor.newly_blocked.get(row.job_id, 0) + 1
    return verdict


def _verdict(row: Any, floor: _Floor) -> OverlapVerdict:
    if row.job_is_deleted:
        # The delete finishes what waits, but an attempt that failed at that very moment was
        # running when the delete looked, and queued for a retry afterwards.
        return OverlapVerdict(GoDecision.SKIP, skip_reason="job_deleted")
    if row.is_too_late:
        return OverlapVerdict(GoDecision.SKIP, skip_reason="deadline")
    holder = floor.holders.get(row.job_id)
    if row.overlap == Overlap.REPLACE:
        return _replacing(row, holder, floor)
    return decide_overlap(
        row.run_id,
        Overlap(row.overlap),
        holder,
        blocked=row.blocked + floor.newly_blocked.get(row.job_id, 0),
        queue_limit=row.queue_limit,
        waits_its_turn=row.is_caught_up,
    )


def _replacing(row: Any, holder_id: UUID | None, floor: _Floor) -> OverlapVerdict:
    rivals = floor.rivals.setdefault(row.job_id, {})
    run = Rival(row.run_id, row.due_at, row.is_caught_up)
    holder = rivals.get(holder_id, run) if holder_id else None
    if holder is run and holder_id != run.run_id:
        # Not among the rivals: the policy was changed since they were read, or the guard is stale.
        # It may have a container, so it is waited for; the next arrival replaces it.
        return OverlapVerdict(GoDecision.BLOCK)
    waiting = [each for each in rivals.values() if each.run_id not in (holder_id, run.run_id)]
    verdict = decide_replace(run, holder, waiting)
    for gone in verdict.replaces:
        if not rivals[gone].is_running:
            del rivals[gone]
    if verdict.decision is not GoDecision.SKIP:
        rivals[run.run_id] = replace(run, is_running=verdict.decision is GoDecision.GO)
    return verdict


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


def _write_go(floor: _Floor, node: str) -> list[Any]:
    """Write what was decided; returns the runs that were replaced, as they are then."""
    going, verdicts = floor.going, floor.verdicts
    replaced = _replace(verdicts)
    if going:
        written = store.execute_of_runs(
            "go_runs", going, "prepared_ago_s", "task_version", node=node
        )
        # We hold every row's lock and have read its status: fewer rows would be a fault of ours.
        assert written == len(going), f"{written} of {len(going)} runs went"
    taking = [request for request in going if verdicts[request.run_id].takes_guard]
    if taking:
        store.execute("take_guards", **store.columns(taking, "job_id", "run_id", "fence"))
    blocked = _with_decision(GoDecision.BLOCK, verdicts, floor.requests)
    if blocked:
        store.execute_of_runs("block_runs", blocked)
    skipped = _with_decision(GoDecision.SKIP, verdicts, floor.requests)
    if skipped:
        of_skipped = [verdicts[request.run_id] for request in skipped]
        store.execute_of_runs(
            "skip_runs",
            skipped,
            reasons=[verdict.skip_reason for verdict in of_skipped],
            replaced_bys=[verdict.replaced_by for verdict in of_skipped],
        )
        # One that was too late may hold the guard, passed to it while it was blocked.
        store.release_guards((request.job_id, request.run_id) for request in skipped)
    note_run_ends([*skipped, *(run for run in replaced if run.finished_at is not None)])
    return replaced


def _replace(verdicts: dict[UUID, OverlapVerdict]) -> list[Any]:
    """Stop or finish the runs whose place others take; the caller holds their locks."""
    pairs = [(old, new) for new, verdict in verdicts.items() for old in verdict.replaces]
    if not pairs:
        return []
    return store.fetch(
        "replace_runs",
        run_ids=[old for old, _ in pairs],
        scheduled_fors=[scheduled_for_of(old) for old, _ in pairs],
        replaced_bys=[new for _, new in pairs],
    )


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
        rows = store.fetch_of_runs(
            "record_starts", starts, "fence", "started_at", session_id=session_id
        )
        # Most are on time, or nobody asked to be told: they cost nothing here.
        note_run_ends(row for row in rows if row.is_heard and (row.lag_s or 0) > LEAST_LATE_S)
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
    if settings.UNSAFE_NO_FENCE_GUARD:
        return _complete_whatever_the_fence(session_id, node, completions)
    return _complete(session_id, node, completions)


def _complete_whatever_the_fence(
    session_id: UUID, node: str, completions: Sequence[Completion]
) -> dict[UUID, CompleteAnswer]:
    """What a scheduler without fences does; only for the test that shows why there is one.

    Each completion is taken as if it came from whoever holds the run by now.
    """
    answers: dict[UUID, CompleteAnswer] = {}
    for completion in completions:
        keys = store.columns([completion], "run_id", "scheduled_for", "fence")
        holder, fence = session_id, completion.fence
        for row in store.fetch("read_runs_for_completion", **keys):
            holder, fence = row.lease_owner or session_id, row.fence
        answers |= _complete(holder, node, [replace(completion, fence=fence)])
    return answers


def _complete(
    session_id: UUID, node: str, completions: Sequence[Completion]
) -> dict[UUID, CompleteAnswer]:
    with transaction.atomic():
        store.lock_guards(completion.job_id for completion in completions)
        rows = {
            row.run_id: row
            for row in store.fetch_of_runs("read_runs_for_completion", completions, "fence")
        }
        taken: list[tuple[Completion, Any, Ending]] = []
        answers: dict[UUID, CompleteAnswer] = {}
        for completion in completions:
            row = rows.get(completion.run_id)
            answers[completion.run_id] = _accept(session_id, completion, row)
            if row is not None and _is_ours(session_id, completion, row):
                judged = replace(completion, outcome=_judged(completion, row))
                taken.append((judged, row, _ending(judged, row)))
        _write_endings(session_id, node, taken)
        note_run_ends(row for _, row, end in taken if row.is_heard and end.status in FINAL)
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


def _ignored(row: Any) -> int:
    """How many tries of the run counted neither as a failure nor as a loss of ours."""
    return max(0, int(row.attempt - 1 - row.failures - row.lease_losses))


def _judged(completion: Completion, row: Any) -> Outcome:
    if row.cancel_requested or row.job_is_deleted:
        return completion.outcome  # it isn't tried again, whatever the job says about its codes
    codes = RetryPolicy.from_json(row.retry).exit_codes
    return judge_exit(completion.outcome, completion.exit_code, codes, ignored=_ignored(row))


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
        ignored=_ignored(row),
    )


def _write_endings(
    session_id: UUID, node: str, taken: Sequence[tuple[Completion, Any, Ending]]
) -> None:
    if not taken:
        return
    completions = [completion for completion, _, _ in taken]
    endings = [ending for _, _, ending in taken]
    outcomes = [completion.outcome.code.value for completion in completions]
    written = store.fetch_of_runs(
        "complete_runs",
        completions,
        *("fence", "started_at", "exit_code"),
        session_id=session_id,
        statuses=[ending.status.value for ending in endings],
        outcomes=outcomes,
        **store.columns(endings, "attempt_step", "failure_step", "loss_step", "wait_s"),
    )
    # We hold every row's lock and have read fence, owner and status under it.
    assert len(written) == len(taken), f"{len(written)} of {len(taken)} completed"
    attempts = [row.attempt for _, row, _ in taken]
    store.execute_of_runs(
        "end_attempts",
        completions,
        *("fence", "started_at", "exit_code", "finished_at", "image_digest"),
        session_id=session_id,
        node=node,
        attempts=attempts,
        outcomes=outcomes,
        messages=[_storable(completion.outcome.message) for completion in completions],
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
