"""Alice owns things, Bob is another tenant, and Carol may only read what Alice owns."""

import pytest
from django.conf import settings

from tenants.models import Tenant
from tests.support.api_client import ApiClient, client_of
from tests.support.factories import make_tenant


@pytest.fixture(scope="session", autouse=True)
def static_root() -> None:
    """WhiteNoise warns of a directory that is not there, and warnings are errors."""
    settings.STATIC_ROOT.mkdir(parents=True, exist_ok=True)


@pytest.fixture(scope="session", autouse=True)
def patient_limiter() -> None:
    """On a busy machine Redis may be slow, and then the rate headers that tests look for fail."""
    settings.RATE_LIMIT_TIMEOUT_MS = 1_000


@pytest.fixture
def acme(db: None) -> Tenant:
    """Alice's and Carol's tenant."""
    return make_tenant(name="Acme")


@pytest.fixture
def globex(db: None) -> Tenant:
    """Bob's tenant."""
    return make_tenant(name="Globex")


@pytest.fixture
def alice(acme: Tenant) -> ApiClient:
    """A client with the scope write."""
    return client_of(acme, "write")


@pytest.fixture
def carol(acme: Tenant) -> ApiClient:
    """A client of Alice's tenant with the scope read."""
    return client_of(acme, "read")


@pytest.fixture
def bob(globex: Tenant) -> ApiClient:
    """A client of another tenant with the scope write."""
    return client_of(globex, "write")
