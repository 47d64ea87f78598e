"""The text of keys, and what scopes allow."""

import secrets

import pytest

from tenants.domain.api_key_text import NO_HASH, hash_of, is_right, make_key, prefix_of
from tenants.domain.quota import Quota
from tenants.domain.scope import SCOPES, allows


def test_a_key_proves_itself_and_no_other_does() -> None:
    first, second = make_key(secrets.choice), make_key(secrets.choice)
    assert prefix_of(first.text) == first.prefix
    assert is_right(first.text, first.key_hash)
    assert not is_right(second.text, first.key_hash)
    assert not is_right(first.text, NO_HASH)
    assert first.text.startswith(f"sk_{first.prefix}_")
    assert len(first.prefix) <= 16
    assert len(first.key_hash) == 64
    assert hash_of(first.text) == first.key_hash


@pytest.mark.parametrize(
    "change",
    [
        lambda key: key[:-1],
        lambda key: key + "0",
        lambda key: key.replace("sk_", "pk_"),
        lambda key: key.upper(),
        lambda key: key.replace("_", "-"),
        lambda key: key + "\n",
        lambda key: " " + key,
        lambda key: key[:-1] + "\0",
        lambda key: key[:-1] + "é",
        lambda key: key[:-1] + "٣",
        lambda key: "",
    ],
)
def test_what_does_not_have_the_form_of_a_key_has_no_prefix(change: object) -> None:
    key = make_key(secrets.choice).text
    assert prefix_of(change(key)) is None  # type: ignore[operator]


@pytest.mark.parametrize(
    ("scopes", "allowed"),
    [
        (["read"], {"read"}),
        (["write"], {"read", "write"}),
        (["admin"], {"read", "write", "admin"}),
        (["read", "write"], {"read", "write"}),
        ([], set()),
        (["root"], set()),
    ],
)
def test_a_scope_includes_the_ones_below_it(scopes: list[str], allowed: set[str]) -> None:
    assert {needed for needed in SCOPES if allows(scopes, needed)} == allowed
    assert not allows(scopes, "root")


@pytest.mark.parametrize(
    ("limit", "used", "more", "allowed", "left"),
    [(3, 2, 1, True, 1), (3, 3, 1, False, 0), (3, 0, 3, True, 3), (3, 5, 1, False, 0)],
)
def test_a_limit_is_the_number_that_may_exist(
    limit: int, used: int, more: int, allowed: bool, left: int
) -> None:
    quota = Quota("max_jobs", limit, used)
    assert (quota.allows(more), quota.left) == (allowed, left)
