"""The environment of a container: the customer's names, then ours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest

from workers.environment import RESERVED_NAMES, container_environment, rfc3339_utc

RUN = UUID("0190a0a0-0000-7000-8000-000000000001")
JOB = UUID("0190a0a0-0000-7000-8000-000000000002")


def environment(**job_env: str) -> dict[str, str]:
    return container_environment(
        run_id=RUN,
        job_id=JOB,
        attempt=2,
        scheduled_for=datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
        fence=77,
        job_env=job_env,
    )


def test_a_program_learns_who_it_is_and_for_when() -> None:
    assert environment() == {
        "RUN_ID": str(RUN),
        "JOB_ID": str(JOB),
        "ATTEMPT": "2",
        "SCHEDULED_FOR": "2026-03-29T01:30:00Z",
        "FENCE": "77",
    }


def test_the_jobs_variables_pass_unchanged() -> None:
    found = environment(TOKEN="bobsyouruncle==", MULTI="a\nb", EMPTY="", PATH="")
    assert {name: found[name] for name in ("TOKEN", "MULTI", "EMPTY", "PATH")} == {
        "TOKEN": "bobsyouruncle==",
        "MULTI": "a\nb",
        "EMPTY": "",
        "PATH": "",
    }


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_a_reserved_name_cannot_be_taken(name: str) -> None:
    assert environment(**{name: "fake"}) == environment()


def test_the_reserved_names_are_those_we_set() -> None:
    assert set(environment()) == RESERVED_NAMES


def test_names_differing_in_case_are_the_customers_own() -> None:
    assert environment(run_id="mine")["run_id"] == "mine"


def test_the_instant_is_told_in_utc_whatever_its_zone() -> None:
    kolkata = timezone(timedelta(hours=5, minutes=30))
    assert rfc3339_utc(datetime(2026, 1, 1, 5, 30, tzinfo=kolkata)) == "2026-01-01T00:00:00Z"


def test_a_fraction_is_kept() -> None:
    instant = datetime(2026, 1, 1, 0, 0, 0, 250_000, tzinfo=UTC)
    assert rfc3339_utc(instant) == "2026-01-01T00:00:00.250Z"


def test_an_instant_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="offset"):
        rfc3339_utc(datetime(2026, 1, 1))
