"""manage.py verify_history on a system that goes on beside it: one snapshot, and what it says."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from jobs.services import job_delete
from runs.history import Checked, Scope, verify_history
from runs.planner import plan_once
from tests.support.factories import make_tenant
from tests.support.lived_history import execute, saved_job
from tests.support.racing import race

pytestmark = pytest.mark.django_db(transaction=True)


def verify(*words: str) -> str:
    out = StringIO()
    call_command("verify_history", *words, stdout=out)
    return out.getvalue()


def test_the_command_says_what_it_looked_at() -> None:
    saved_job(make_tenant(), minutes_ago=5)
    plan_once()

    assert verify().startswith("No violation in 1 jobs, ")


def test_the_command_prints_each_violation_and_exits_with_1() -> None:
    tenant = make_tenant()
    jobs = [saved_job(tenant, minutes_ago=30) for _ in range(2)]
    plan_once()
    execute("DELETE FROM missed_spans")
    out = StringIO()

    with pytest.raises(CommandError, match="2 violations in 2 jobs") as error:
        call_command("verify_history", stdout=out)

    assert error.value.returncode == 1
    lines = out.getvalue().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["missing", "missing"]
    assert all(any(str(job.job_id) in line for line in lines) for job in jobs)


def test_a_check_can_be_kept_to_a_tenant_a_job_or_a_time() -> None:
    tenant, other = make_tenant(), make_tenant()
    broken, sound = saved_job(tenant, minutes_ago=30), saved_job(other, minutes_ago=30)
    plan_once()
    execute("DELETE FROM missed_spans WHERE job_id = %s", broken.job_id)

    assert "in 1 jobs" in verify("--tenant", other.name)
    assert "in 1 jobs" in verify("--job", str(sound.job_id))
    assert "in 2 jobs" in verify("--since", "2999-01-01")
    assert "in 2 jobs" in verify("--until", "2020-01-01T00:00:00Z")
    with pytest.raises(CommandError, match="1 violations"):
        verify("--tenant", tenant.name)
    with pytest.raises(CommandError, match="no tenant"):
        verify("--tenant", "nobody")


def test_what_happens_meanwhile_is_not_seen() -> None:
    """Deleted between two streams, a job would look as if its runs were of nobody."""
    tenant = make_tenant()
    jobs = [saved_job(tenant, minutes_ago=5) for _ in range(3)]
    plan_once()
    checked = Checked()
    violations = verify_history(Scope(), checked)
    execute("DELETE FROM missed_spans WHERE job_id = %s", jobs[0].job_id)
    first = next(violations)  # the snapshot is taken here

    def meanwhile() -> None:
        for job in jobs:
            job_delete(tenant, job.job_id, changed_by="test")
        execute("DELETE FROM runs")

    race([meanwhile])

    assert (str(first.kind), [*violations]) == ("missing", [])
    assert checked.jobs == 3
    assert checked.runs >= 3
    assert connection.get_autocommit()
