"""Rows inserted together, statements prepared, transactions that join: no half of anything."""

from uuid import uuid4

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from scheduler_project.lib.insert_together import insert_together
from scheduler_project.lib.transactions import one_transaction
from tenants.models import ApiKey, Tenant
from tenants.selectors import key_find

pytestmark = pytest.mark.django_db(transaction=True)


def _tenant_and_key() -> tuple[Tenant, ApiKey]:
    tenant = Tenant(name=f"tenant-{uuid4()}")
    return tenant, ApiKey(tenant=tenant, name="k", prefix=uuid4().hex[:16], scopes=["read"])


def _fail_after_creating(name: str) -> None:
    with one_transaction():
        Tenant.objects.create(name=name)
        raise ValueError(name)


def test_rows_inserted_together_are_one_statement_and_read_back_as_saved() -> None:
    tenant, key = _tenant_and_key()
    with CaptureQueriesContext(
        connection,
    ) as queries:
        insert_together(tenant, key)
    assert len(queries) == 1
    found = ApiKey.objects.select_related("tenant").get(pk=key.pk)
    assert (found.prefix, found.scopes) == (key.prefix, ["read"])
    assert (found.tenant.name, found.tenant.max_cpu) == (tenant.name, tenant.max_cpu)
    # Left to the database.
    assert found.created_at is not None


def test_of_rows_inserted_together_all_are_stored_or_none() -> None:
    tenant, key = _tenant_and_key()
    insert_together(tenant, key)
    another, same_prefix = _tenant_and_key()
    same_prefix.prefix = key.prefix
    with pytest.raises(IntegrityError):
        insert_together(another, same_prefix)
    assert not Tenant.objects.filter(pk=another.pk).exists()


def test_a_statement_is_prepared_at_its_fifth_execution_and_reads_like_any_other() -> None:
    tenant, key = _tenant_and_key()
    insert_together(tenant, key)
    connection.close()  # what other tests have prepared goes with it
    found = [key_find(key.prefix) for _ in range(6)]
    assert [one and one.api_key.tenant for one in found] == [tenant] * 6
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements")
        (statement,) = cursor.fetchone()
        assert "FROM api_keys JOIN tenants" in statement


def test_a_prepared_statement_survives_a_column_more() -> None:
    tenant, key = _tenant_and_key()
    insert_together(tenant, key)
    for _ in range(6):
        assert key_find(key.prefix)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE tenants ADD COLUMN of_a_later_release text")
        try:
            assert key_find(key.prefix)
        finally:
            cursor.execute("ALTER TABLE tenants DROP COLUMN of_a_later_release")
    assert key_find(key.prefix)


def test_an_inner_part_of_a_transaction_takes_no_savepoint() -> None:
    with CaptureQueriesContext(connection) as queries, one_transaction(), one_transaction():
        Tenant.objects.create(name="inner")
    said = [query["sql"] for query in queries]
    assert not [sql for sql in said if "SAVEPOINT" in sql]
    assert Tenant.objects.filter(name="inner").exists()


def test_an_error_of_an_inner_part_undoes_the_whole_even_if_it_is_swallowed() -> None:
    with one_transaction():
        Tenant.objects.create(name="outer")
        try:
            with one_transaction():
                raise ValueError
        except ValueError:
            pass
        with pytest.raises(DatabaseError):  # nothing more can be said in it
            Tenant.objects.count()
    assert not Tenant.objects.filter(name="outer").exists()


def test_inside_a_plain_transaction_an_error_undoes_only_its_own_part() -> None:
    with transaction.atomic():
        Tenant.objects.create(name="outer")
        with pytest.raises(ValueError, match="inner"):
            _fail_after_creating("inner")
    assert list(Tenant.objects.values_list("name", flat=True)) == ["outer"]


def test_the_next_transaction_after_a_failed_one_is_a_transaction_of_its_own() -> None:
    with pytest.raises(ValueError, match="first"), one_transaction():
        raise ValueError("first")
    with one_transaction():
        assert connection.in_atomic_block
        Tenant.objects.create(name="second")
    assert Tenant.objects.filter(name="second").exists()
