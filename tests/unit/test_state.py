"""The table of a run's states: sound in itself, and the same in docs and database."""

import re
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from runs.domain.state import FINAL, HELD, TRANSITIONS, RunStatus, Trigger, is_final, may_follow
from runs.domain.state_diagram import FIRST, state_diagram
from runs.models import Run
from tests.support.factories import database_now, make_job, make_run

ARCHITECTURE = Path(__file__).parents[2] / "docs" / "architecture.md"


def test_every_state_has_a_line_in_the_table() -> None:
    assert set(TRANSITIONS) == set(RunStatus)


def test_final_states_are_final() -> None:
    assert {"succeeded", "failed", "cancelled", "skipped"} == FINAL
    assert not any(may_follow(before, after) for before in FINAL for after in RunStatus)


def test_no_state_follows_itself() -> None:
    assert not any(may_follow(status, status) for status in RunStatus)


def test_every_state_can_be_reached_from_the_first_ones() -> None:
    reached = set(FIRST)
    while grown := {after for before in reached for after in TRANSITIONS[before]} - reached:
        reached |= grown
    assert reached == set(RunStatus)


@pytest.mark.parametrize("status", [status for status in RunStatus if not is_final(status)])
def test_from_every_other_state_an_end_can_be_reached(status: RunStatus) -> None:
    reached = {status}
    while grown := {after for before in reached for after in TRANSITIONS[before]} - reached:
        reached |= grown
    assert reached & FINAL


def test_only_a_worker_lets_a_run_succeed() -> None:
    assert {before for before in RunStatus if may_follow(before, RunStatus.SUCCEEDED)} == {
        RunStatus.RUNNING
    }


def test_the_diagram_in_the_docs_is_the_table() -> None:
    shown = re.findall(r"```mermaid\n(stateDiagram-v2.*?)\n```", ARCHITECTURE.read_text(), re.S)
    assert shown == [state_diagram()], f"docs/architecture.md must hold:\n{state_diagram()}"


def _accepted(status: str, trigger: str = "schedule", **fields: Any) -> bool:
    """Whether the database takes a row of this status, with everything else as that asks for."""
    job = make_job()
    values: dict[str, Any] = {
        "lease_owner": None if status == "blocked" else job.job_id,
        "fence": 1,
        "go_at": database_now(),
        "finished_at": database_now() if status in FINAL else None,
        "skip_reason": "overlap",
        **fields,
    }
    try:
        with transaction.atomic():
            make_run(job, status=status, trigger=trigger, **values)
    except IntegrityError as error:
        if "violates check constraint" not in str(error):
            raise
        return False
    return True


@pytest.mark.django_db
@pytest.mark.parametrize("status", [*RunStatus, "paused", ""])
def test_the_database_knows_the_states_of_the_table_and_no_other(status: str) -> None:
    assert _accepted(status) is (status in set(RunStatus))


@pytest.mark.django_db
@pytest.mark.parametrize("trigger", [*Trigger, "magic"])
def test_the_database_knows_the_triggers_and_no_other(trigger: str) -> None:
    assert _accepted("queued", trigger) is (trigger in set(Trigger))


@pytest.mark.django_db
@pytest.mark.parametrize("status", RunStatus)
def test_the_database_wants_an_end_of_final_runs_and_of_no_other(status: RunStatus) -> None:
    assert _accepted(status, finished_at=database_now()) is is_final(status)
    assert _accepted(status, finished_at=None) is not is_final(status)


@pytest.mark.django_db
@pytest.mark.parametrize("status", RunStatus)
def test_the_database_wants_an_owner_and_a_fence_of_held_runs(status: RunStatus) -> None:
    assert _accepted(status, lease_owner=None) is (status not in HELD)
    assert _accepted(status, fence=0) is (status not in HELD)


@pytest.mark.django_db
def test_the_database_refuses_a_blocked_run_with_an_owner() -> None:
    assert not _accepted("blocked", lease_owner=make_job().job_id)


@pytest.mark.django_db
@pytest.mark.parametrize("status", RunStatus)
def test_the_database_wants_a_go_of_running_runs(status: RunStatus) -> None:
    assert _accepted(status, go_at=None) is (status is not RunStatus.RUNNING)


@pytest.mark.django_db
@pytest.mark.parametrize("status", RunStatus)
def test_the_database_wants_a_reason_of_skipped_runs(status: RunStatus) -> None:
    assert _accepted(status, skip_reason="") is (status is not RunStatus.SKIPPED)


def test_the_model_declares_the_states_that_the_database_knows() -> None:
    choices = Run._meta.get_field("status").choices
    assert [value for value, _ in choices or ()] == list(RunStatus)
