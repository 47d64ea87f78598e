"""Replays of dead letters at once, on real connections: each dead letter is run again once."""

from collections import Counter
from functools import partial
from uuid import UUID

import pytest
from django.db import transaction

from jobs.models import ScheduleCursor
from runs import leases
from runs.domain.outcome import OutcomeCode, outcome
from runs.leases import Completion
from runs.models import Run
from runs.replays import Replays, dead_letters_replay
from runs.selectors import DeadLetterFilter
from tenants.models import Tenant
from tests.support.factories import make_due_job, make_run, make_session, make_tenant, reread, start
from tests.support.racing import blocked_by_us, race

pytestmark = pytest.mark.django_db(transaction=True)

LETTERS, ROUNDS = 40, 5


def dead_letters(tenant: Tenant) -> set[UUID]:
    """Runs of two jobs that failed their only attempt."""
    session = make_session(slots=1_000)
    jobs = [make_due_job(tenant, due_in_s=3_600, retry={"max_attempts": 1}) for _ in range(2)]
    runs = [make_run(jobs[n % 2], due_in_s=-60 - n) for n in range(LETTERS)]
    started = [start(run, session) for run in runs]
    leases.complete(
        session,
        "node-1",
        [
            Completion(
                each.run_id, each.scheduled_for, each.job_id, each.fence,
                outcome(OutcomeCode.NON_ZERO_EXIT, "exit code 3"), exit_code=3,
            )
            for each in started
        ],
    )  # fmt: skip
    assert {reread(run).status for run in runs} == {"failed"}
    return {run.run_id for run in runs}


def replay(tenant: Tenant) -> Replays:
    return dead_letters_replay(tenant, DeadLetterFilter(), rate_per_minute=600, dry_run=False)


def test_two_replays_of_one_filter_at_once_replay_no_dead_letter_twice() -> None:
    for _ in range(ROUNDS):
        tenant = make_tenant()
        dead = dead_letters(tenant)

        answers: list[Replays] = race([partial(replay, tenant)] * 2)
        # Whoever found a dead letter held by the other has left it to the other.
        answers.append(replay(tenant))

        said = [each.dead_letter for answer in answers for each in answer.runs]
        assert sorted(said) == sorted(dead), "each once, and none is left"
        made = Run.objects.filter(tenant=tenant, trigger="replay")
        assert Counter(made.values_list("replay_of", flat=True)) == Counter(dead)
        assert {each.run_id for answer in answers for each in answer.runs} == set(
            made.values_list("run_id", flat=True)
        )
        pairs = Run.objects.filter(run_id__in=dead).values_list("run_id", "replayed_by")
        assert set(pairs) == set(made.values_list("replay_of", "run_id"))


def test_a_replay_that_chose_before_another_committed_replays_nothing_of_it() -> None:
    """The second has read the dead letters before its wait for the jobs, and looks again after."""
    tenant = make_tenant()
    dead = dead_letters(tenant)
    with transaction.atomic():
        list(ScheduleCursor.objects.select_for_update().filter(job__tenant=tenant))
        waiting = blocked_by_us(partial(replay, tenant))
        first = replay(tenant)
    second = waiting.result(30)

    assert len(first.runs) == LETTERS
    assert second.runs == []
    made = Run.objects.filter(tenant=tenant, trigger="replay")
    assert Counter(made.values_list("replay_of", flat=True)) == Counter(dead)
