"""Writes docs/api-errors.md from the catalogue, so that the two can't differ.

python -m scheduler_project.lib.problem_docs > docs/api-errors.md
"""

import sys
from typing import Final

from scheduler_project.lib.problem_catalogue import FIELD_CODES, PROBLEMS

_HEAD: Final = """\
# API errors

Every error is a JSON object of the type `application/problem+json`
([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)):

```json
{
  "type": "/docs/errors#invalid_request",
  "title": "Some fields are not valid",
  "status": 400,
  "code": "invalid_request",
  "detail": "task.timeout_s: This must be a whole number from 1 to 86400.",
  "request_id": "req_0b7c1e0f6a5d4f2f9a54c0a1e5c1d2aa",
  "errors": [
    {
      "field": "task.timeout_s",
      "code": "too_large",
      "message": "This must be a whole number from 1 to 86400."
    }
  ]
}
```

- Decide by `code`: it is stable. `title`, `detail` and messages are for people and may change.
- `errors` names each field that is wrong, by its path (`task.args[2]`, `labels["a.b"]`), with a
  code of its own, a message, and where there is one a `hint`: the nearest accepted form.
- `request_id` is also the header `X-Request-Id`, of every answer. Send your own
  (up to 128 letters, digits and `._:@=+/-`) and it is kept.
- Another tenant's object looks like one that does not exist: 404.
- An input error is never a 5xx. After a 5xx or a lost answer send the same request again with the
  same `Idempotency-Key`: it is carried out once.

## How requests are read

- Bodies are one JSON object in UTF-8 without byte order mark, at most 256 KiB (a setting) and 32
  levels deep. A key given twice, `NaN`, NUL characters and halves of surrogate pairs are refused,
  so that no two readers could understand a body differently.
- Unknown fields and query parameters are refused by name. Booleans are not numbers, numbers are not
  texts, and whole numbers are written without `.` and `e`. Leave a field out instead of sending
  `null`.
- Names, descriptions and labels are kept in Unicode form NFC: text in NFC, as keyboards write it,
  comes back byte for byte, other forms are brought to NFC. Arguments and environment values are
  never changed.
- Instants are RFC 3339 with an offset.
- `Idempotency-Key` (optional, 1 to 255 printable ASCII characters, taken literally): a POST sent
  again with the same key, address and body within 24 hours gets the first one's answer, status,
  body and headers, with `Idempotency-Replayed: true`, although the object may have changed since.
  Bodies are compared as JSON: white space and the order of keys don't count. Keys belong to the
  tenant. Errors are not kept: a refused request leaves its key free.
- `If-Match` takes one version: the ETag as it came, its version alone (`"3"` or `3`), or `*`. A
  weak tag matches nothing.
- Cursors are good for the list, the filters and the tenant they were made for, and for 30 days.
- Rates are limited per key and class of call (read, write, run_now). Every answer says what remains
  in `RateLimit` and `RateLimit-Policy`; a 429 says in `Retry-After` how many seconds to wait.

## All codes
"""


def as_markdown() -> str:
    """Return the whole document."""
    problems = "".join(
        f"\n### {p.status} `{p.code}`\n\n{p.title}. {p.meaning}\n\n*What to do:* {p.mend}\n"
        for p in PROBLEMS.values()
    )
    fields = "".join(f"| `{code}` | {meaning} |\n" for code, meaning in FIELD_CODES.items())
    return f"{_HEAD}{problems}\n## Codes of single fields\n\n| code | means |\n|---|---|\n{fields}"


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
