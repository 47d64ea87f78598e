"""manage.py tenant_create, apikey_create, apikey_revoke: what they make, and what they say."""

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import BaseCommand

from tenants.management.commands import apikey_create, apikey_revoke, tenant_create
from tenants.models import ApiKey, Tenant
from tests.support.api_client import ApiClient

pytestmark = pytest.mark.django_db


def run(*words: str) -> str:
    output = io.StringIO()
    call_command(*words, stdout=output)
    return output.getvalue()


def run_json(*words: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(run(*words, "--json"))
    return facts


@pytest.fixture
def acme() -> Tenant:
    run("tenant_create", "--name", "Acme", "--weight", "300")
    return Tenant.objects.get(name="Acme")


def test_a_new_tenant_has_the_limits_that_were_given_and_else_defaults(acme: Tenant) -> None:
    assert acme.weight == 300
    assert acme.max_jobs == 10_000


def test_a_contact_is_set_checked_and_taken_away(acme: Tenant) -> None:
    run("tenant_contact", "--tenant", "Acme", "--email", "ops@acme.example")
    acme.refresh_from_db()
    assert acme.contact_email == "ops@acme.example"
    with pytest.raises(CommandError, match="email"):
        run("tenant_contact", "--tenant", "Acme", "--email", "ops@acme.example\nBcc: x@y.example")
    facts = run_json("tenant_contact", "--tenant", "Acme", "--email", "")
    assert facts == {"tenant": "Acme", "contact_email": ""}


def test_a_tenant_is_not_made_twice(acme: Tenant) -> None:
    with pytest.raises(CommandError, match=r"[Nn]ame"):
        run("tenant_create", "--name", "Acme")
    assert Tenant.objects.count() == 1


def test_if_missing_finds_the_tenant_and_leaves_it_as_it_is(acme: Tenant) -> None:
    facts = run_json("tenant_create", "--name", "Acme", "--weight", "5", "--if-missing")
    assert facts == {"tenant_id": str(acme.pk), "name": "Acme", "created": False}
    acme.refresh_from_db()
    assert acme.weight == 300


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "a\x00b", "x" * 201])
def test_a_name_that_nobody_could_read_is_refused(name: str) -> None:
    with pytest.raises(CommandError):
        run("tenant_create", "--name", name)
    assert not Tenant.objects.exists()


@pytest.mark.parametrize("weight", ["0", "-1", "2147483648", "99999999999999999999"])
def test_a_weight_out_of_range_is_refused_in_words(weight: str) -> None:
    with pytest.raises(CommandError, match="weight"):
        run("tenant_create", "--name", "Acme", f"--weight={weight}")


def test_a_printed_key_works_and_is_nowhere_in_the_database(acme: Tenant) -> None:
    output = run("apikey_create", "--tenant", "Acme", "--name", "deploy")
    key = output.splitlines()[0]
    assert ApiClient(key).get("/v1/me").json()["key"]["scopes"] == ["read", "write"]
    stored = ApiKey.objects.values().get()
    assert key not in str(stored)
    assert key.split("_")[2] not in str(stored)


def test_a_key_can_be_had_as_json_with_scopes_and_an_end(acme: Tenant) -> None:
    facts = run_json(
        *("apikey_create", "--tenant", str(acme.pk), "--name", "ci"),
        *("--scopes", "admin, read,read", "--expires-in-days", "0.5"),
    )
    assert facts["scopes"] == ["read", "admin"]
    api_key = ApiKey.objects.get()
    assert api_key.expires_at is not None
    assert 42_000 < (api_key.expires_at - api_key.created_at).total_seconds() < 43_300
    assert facts["expires_at"] == api_key.expires_at.isoformat()


@pytest.mark.parametrize("scopes", ["", ",", "root", "read,root", "READ"])
def test_a_scope_that_does_not_exist_is_refused_with_those_that_do(
    acme: Tenant, scopes: str
) -> None:
    with pytest.raises(CommandError, match="read, write, admin"):
        run("apikey_create", "--tenant", "Acme", "--name", "x", "--scopes", scopes)
    assert not ApiKey.objects.exists()


@pytest.mark.parametrize("days", ["0", "-1"])
def test_a_key_that_would_have_expired_already_is_refused(acme: Tenant, days: str) -> None:
    with pytest.raises(CommandError, match="expired"):
        run("apikey_create", "--tenant", "Acme", "--name", "x", f"--expires-in-days={days}")


def test_for_a_tenant_that_is_not_there_the_command_that_makes_it_is_named() -> None:
    with pytest.raises(CommandError, match="tenant_create --name 'Nobody'"):
        run("apikey_create", "--tenant", "Nobody", "--name", "x")


def test_a_key_is_revoked_by_its_prefix_or_itself_and_again_harmlessly(acme: Tenant) -> None:
    facts = run_json("apikey_create", "--tenant", "Acme", "--name", "x")
    key, prefix = facts["key"], facts["prefix"]
    first = run_json("apikey_revoke", prefix)
    assert first["prefix"] == prefix
    assert ApiClient(key).get("/v1/me").status_code == 401
    assert run_json("apikey_revoke", key) == first
    assert run_json("apikey_revoke", f"sk_{prefix}") == first


def test_a_key_that_is_not_there_cannot_be_revoked() -> None:
    with pytest.raises(CommandError, match="no key"):
        run("apikey_revoke", "nothing")


@pytest.mark.parametrize("module", [tenant_create, apikey_create, apikey_revoke])
def test_help_says_what_the_command_and_each_option_does(module: Any) -> None:
    command: BaseCommand = module.Command()
    parser = command.create_parser("manage.py", module.__name__.rpartition(".")[2])
    assert command.help
    own = [action for action in parser._actions if action.dest not in ("help", "version")]
    assert all(action.help for action in own)
    assert "--json" in parser.format_help()
