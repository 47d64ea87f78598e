"""Secrets that we must be able to read again, sealed before they reach the database.

Its rule: a stolen database alone gives nothing away. The keys come from the environment
(ENCRYPTION_KEYS); the first one seals, all of them open, so that a key is changed without an
outage: put the new one in front, and drop the old one when nothing is sealed by it any more.
"""

import base64
import hashlib
from functools import lru_cache

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings


class UnreadableSecretError(Exception):
    """Sealed by a key that ENCRYPTION_KEYS no longer has."""


def seal(text: str) -> str:
    """Return the text encrypted and signed (Fernet: AES-128-CBC and HMAC-SHA-256)."""
    return _cipher(tuple(settings.ENCRYPTION_KEYS)).encrypt(text.encode()).decode()


def unseal(sealed: str) -> str:
    """Return what was sealed; raises UnreadableSecretError."""
    try:
        return _cipher(tuple(settings.ENCRYPTION_KEYS)).decrypt(sealed.encode()).decode()
    except InvalidToken as error:
        raise UnreadableSecretError from error


@lru_cache(maxsize=4)
def _cipher(keys: tuple[str, ...]) -> MultiFernet:
    # Keys are long random texts, as SECRET_KEY is: a hash gives them the length a cipher needs.
    digests = [hashlib.sha256(b"scheduler.sealing\0" + key.encode()).digest() for key in keys]
    return MultiFernet([Fernet(base64.urlsafe_b64encode(digest)) for digest in digests])
