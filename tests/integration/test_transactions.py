"""Rows inserted together, and transactions that join: no savepoint, and no half of anything."""

from uuid import uuid4

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from scheduler_project.lib.insert_together import insert_together
from scheduler_project.lib.transactions import one_transaction
from tenants.models import ApiKey, Tenant

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
