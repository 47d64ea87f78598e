"""What would make the service wrong is said at the start, with how to mend it."""

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connection
from pytest_django import Settings

from runs.partitions import database_today, partition_name
from scheduler_project import checks


def ids(**options: object) -> set[str]:
    return {str(message.id) for message in run_checks(**options)}  # type: ignore[arg-type]


@pytest.mark.django_db
def test_a_sound_installation_has_no_complaint() -> None:
    assert not {found for found in ids(databases=["default"]) if found.startswith("scheduler.")}


def test_wrong_zone_data_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "check_pinned_tzdata", lambda: ["tzdata 2025.2 is too old"])

    assert "scheduler.E001" in ids()


def test_a_process_with_wrong_zone_data_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "check_pinned_tzdata", lambda: ["tzdata 2025.2 is too old"])

    with pytest.raises(ImproperlyConfigured, match=r"tzdata 2025\.2 is too old"):
        checks.refuse_unsound_start()


def test_by_default_worker_warden_expiry_and_reaper_act_at_20_25_30_and_32_s(
    settings: Settings,
) -> None:
    assert settings.HEARTBEAT_S == 10
    assert [
        settings.LEASE_S - settings.WORKER_MARGIN_S,
        settings.LEASE_S - settings.WARDEN_MARGIN_S,
        settings.LEASE_S,
        settings.LEASE_S + settings.REAP_AFTER_S,
    ] == [20, 25, 30, 32]


def test_a_warden_that_acts_before_the_worker_is_an_error(settings: Settings) -> None:
    settings.WORKER_MARGIN_S = settings.WARDEN_MARGIN_S

    assert "scheduler.E002" in ids()


def test_a_heartbeat_that_leaves_no_time_for_a_second_is_an_error(settings: Settings) -> None:
    settings.HEARTBEAT_S = settings.LEASE_S - settings.WORKER_MARGIN_S

    assert "scheduler.E003" in ids()


def test_a_process_without_the_fences_guard_does_not_start_in_production(
    settings: Settings,
) -> None:
    settings.UNSAFE_NO_FENCE_GUARD, settings.DEBUG = True, False

    with pytest.raises(ImproperlyConfigured, match=r"scheduler\.E005"):
        checks.refuse_unsound_start()

    settings.DEBUG = True
    assert "scheduler.E005" not in ids()


@pytest.mark.django_db
def test_a_missing_partition_is_an_error_and_the_command_mends_it() -> None:
    name = partition_name("runs", database_today(connection))
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {name}")
    assert "scheduler.E004" in ids(databases=["default"])

    call_command("create_partitions")

    assert "scheduler.E004" not in ids(databases=["default"])
