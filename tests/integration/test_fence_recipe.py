"""The fence recipe of docs/lease-and-fence.md, as printed there, on a real PostgreSQL."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from django.conf import settings
from django.db import connection

from tests.support.polling import poll

PAGE = (Path(__file__).parents[2] / "docs" / "lease-and-fence.md").read_text()
ONCE, EACH_WRITE = re.findall(r"```sql\n(.*?)```", PAGE, re.S)


class Customer:
    """A program of a customer, in a container with this RUN_ID, JOB_ID and FENCE."""

    def __init__(self, fence: int) -> None:
        database = connection.settings_dict
        self.fence = fence
        self.connection = psycopg.connect(
            host=database["HOST"], port=database["PORT"], user=database["USER"],
            password=database["PASSWORD"], dbname=database["NAME"], autocommit=True,
            options="-c search_path=customer",
        )  # fmt: skip

    def begin(self, total: int) -> None:
        """Everything of the recipe but the COMMIT."""
        *statements, commit = [part.strip() for part in EACH_WRITE.split(";") if part.strip()]
        assert commit == "COMMIT"
        values = {"JOB_ID": "'daily report'", "FENCE": str(self.fence), "total": str(total)}
        for statement in statements:
            given = re.sub(r":'?(\w+)'?", lambda found: values[found.group(1)], statement)
            self.connection.execute(given)

    def commit(self) -> None:
        self.connection.execute("COMMIT")

    def write(self, total: int) -> None:
        self.begin(total)
        self.commit()


@pytest.fixture
def customers(transactional_db: None) -> Iterator[list[Customer]]:
    """Attempts with the fences 7, 8 and 8 (the second process of one container)."""
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA IF EXISTS customer CASCADE; CREATE SCHEMA customer")
    made = [Customer(fence) for fence in (7, 8, 8)]
    made[0].connection.execute("CREATE TABLE report (total integer)")
    made[0].connection.execute("INSERT INTO report VALUES (0)")
    made[0].connection.execute(ONCE)
    yield made
    for customer in made:
        customer.connection.close()
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA customer CASCADE")


def total() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT total FROM customer.report")
        return int(cursor.fetchone()[0])


def test_the_page_names_the_variables_that_containers_get() -> None:
    assert settings.INSTANCE
    assert set(re.findall(r":'?([A-Z_]+)'?", EACH_WRITE)) == {"JOB_ID", "FENCE"}


def test_a_zombie_s_late_write_is_refused(customers: list[Customer]) -> None:
    zombie, successor, _ = customers
    successor.write(8)

    with pytest.raises(psycopg.errors.RaiseException, match="newer attempt"):
        zombie.write(7)
    zombie.connection.execute("ROLLBACK")

    assert total() == 8


def test_one_attempt_writes_as_often_as_it_likes(customers: list[Customer]) -> None:
    zombie, successor, same_attempt = customers
    zombie.write(7)
    successor.write(8)
    same_attempt.write(9)
    successor.write(10)

    assert total() == 10


def test_a_write_that_a_zombie_left_open_is_over_before_its_successor_s(
    customers: list[Customer],
) -> None:
    zombie, successor, _ = customers
    zombie.begin(7)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(successor.write, 8)
        poll(lambda: waits_for_a_lock(successor), 10, "the successor waits for the open write")
        zombie.commit()
        writing.result(10)

    assert total() == 8
    with pytest.raises(psycopg.errors.RaiseException):
        zombie.write(7)


def waits_for_a_lock(customer: Customer) -> bool:
    pid = customer.connection.info.backend_pid
    with connection.cursor() as cursor:
        cursor.execute("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", [pid])
        return bool(cursor.fetchone()[0] == "Lock")
