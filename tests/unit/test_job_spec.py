"""What is left out: defaults for a new job, no change for an old one."""

from typing import Any

import pytest

from jobs.domain.policies import Ceilings, Retry, Task
from jobs.domain.spec import JobChanges, JobSpec, changed_spec, spec_of_new

WIDE = Ceilings(timeout_s=3_600, cpu=4, memory_mb=4_096)
CRON = {"cron": "0 9 * * *", "time_zone": "Asia/Kolkata"}
AT = {"at": "2027-03-01T15:00:00Z"}


def job(**changes: Any) -> JobSpec:
    said = JobChanges(schedule=CRON, task={"image": "a/b:1", "timeout_s": 60})
    return changed_spec(spec_of_new(said, WIDE), JobChanges(**changes))


def test_a_new_job_has_every_default() -> None:
    assert job() == JobSpec(
        schedule=CRON,
        task=Task(image="a/b:1", timeout_s=60, args=(), env={}, cpu=1, memory_mb=512),
        retry=Retry(max_attempts=1),
        overlap="skip",
        name="",
        description="",
        labels={},
        enabled=True,
    )


def test_default_resources_stay_within_the_tenant_s_ceilings() -> None:
    said = JobChanges(schedule=CRON, task={"image": "a/b:1", "timeout_s": 60})
    spec = spec_of_new(said, Ceilings(timeout_s=60, cpu=0.25, memory_mb=128))
    assert (spec.task.cpu, spec.task.memory_mb) == (0.25, 128)


def test_members_that_are_not_mentioned_stay() -> None:
    before = job(task={"args": ("a",), "cpu": 2.0}, retry={"max_attempts": 5, "base_s": 1})
    after = changed_spec(before, JobChanges(task={"timeout_s": 90}, retry={"backoff": "fixed"}))
    assert after.task == Task(image="a/b:1", timeout_s=90, args=("a",), cpu=2.0)
    assert after.retry == Retry(max_attempts=5, base_s=1, backoff="fixed")
    assert after.schedule == before.schedule


def test_lists_and_maps_are_replaced_as_a_whole() -> None:
    before = job(task={"env": {"A": "1", "B": "2"}, "args": ("x", "y")}, labels={"a": "1"})
    after = changed_spec(before, JobChanges(task={"env": {"C": "3"}, "args": ()}, labels={}))
    assert (after.task.env, after.task.args, after.labels) == ({"C": "3"}, (), {})


def test_false_and_empty_are_said_and_not_left_out() -> None:
    after = changed_spec(job(name="x", enabled=True), JobChanges(name="", enabled=False))
    assert (after.name, after.enabled) == ("", False)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"cron": "0 10 * * *"}, {"cron": "0 10 * * *", "time_zone": "Asia/Kolkata"}),
        ({"time_zone": "UTC"}, {"cron": "0 9 * * *", "time_zone": "UTC"}),
        (AT, AT),
        ({"every": "90m"}, {"every": "90m"}),
        ({}, {}),
        ({"cron": "0 10 * * *", "x": 1}, {"cron": "0 10 * * *", "x": 1}),
        ([], []),
    ],
)
def test_only_text_and_zone_of_cron_change_apart(change: object, expected: object) -> None:
    assert job(schedule=change).schedule == expected


def test_a_zone_alone_does_not_go_with_a_one_off() -> None:
    assert changed_spec(job(schedule=AT), JobChanges(schedule={"time_zone": "UTC"})).schedule == {
        "time_zone": "UTC"
    }
