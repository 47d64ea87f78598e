"""The text of an API key: `sk_<prefix>_<secret>`; its rule: the database learns only a hash of it.

The prefix finds the row, the hash of the whole text proves the secret. A plain SHA-256 is enough
because the secret is 256 random bits: there is nothing to guess that stretching would slow down.
"""

import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
PREFIX_LENGTH: Final = 12
# 43 characters of 62 are 256 bits.
SECRET_LENGTH: Final = 43

_KEY: Final = re.compile(
    rf"sk_([0-9A-Za-z]{{{PREFIX_LENGTH}}})_[0-9A-Za-z]{{{SECRET_LENGTH}}}", re.ASCII
)
# Compared against when no row has the prefix, so that both cases take the same time.
NO_HASH: Final = "0" * 64


@dataclass(frozen=True)
class KeyText:
    """A freshly made key: the `text` is shown once, `prefix` and `key_hash` are stored."""

    text: str
    prefix: str
    key_hash: str


def make_key(choose: Callable[[str], str]) -> KeyText:
    """Return a new key from a source of randomness (`secrets.choice`)."""
    prefix = "".join(choose(ALPHABET) for _ in range(PREFIX_LENGTH))
    secret = "".join(choose(ALPHABET) for _ in range(SECRET_LENGTH))
    text = f"sk_{prefix}_{secret}"
    return KeyText(text, prefix, hash_of(text))


def prefix_of(text: str) -> str | None:
    """Return the prefix of a well-formed key, else None."""
    match = _KEY.fullmatch(text)
    return match[1] if match else None


def hash_of(text: str) -> str:
    """Return the SHA-256 of the whole key, 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def is_right(text: str, key_hash: str) -> bool:
    """Tell whether `text` has `key_hash`, in a time that doesn't depend on where they differ."""
    return hmac.compare_digest(hash_of(text), key_hash)
