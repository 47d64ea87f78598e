"""Every problem and field error the API answers with, as data; its rule: no answer without entry.

docs/api-errors.md, the OpenAPI document and the tests are made from these two tables. A code
is part of the contract: add, never rename, never reuse.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class ProblemType:
    """One kind of problem: what it is (`meaning`) and what the caller should do (`mend`)."""

    code: str
    status: int
    title: str
    meaning: str
    mend: str


_PROBLEMS: Final = (
    # --- 400: the request can't be understood ---
    ProblemType(
        "bad_request",
        400,
        "The request is malformed",
        "The HTTP request itself is broken: a host we don't serve, a body that ends early.",
        "Build the request with an HTTP library and send it again.",
    ),
    ProblemType(
        "invalid_json",
        400,
        "The body is not valid JSON",
        "The body is not one JSON text in UTF-8: a syntax error, a byte order mark, a key given "
        "twice, NaN or Infinity, or nesting that is too deep.",
        "Mend the place that `detail` names. Let a JSON library write the body.",
    ),
    ProblemType(
        "body_required",
        400,
        "The body is missing",
        "The operation needs a JSON object and the request has no body.",
        "Send a JSON object with Content-Type: application/json.",
    ),
    ProblemType(
        "body_not_object",
        400,
        "The body is not a JSON object",
        "The body is valid JSON, but a list, a text, a number, true, false or null.",
        "Send an object: {…}.",
    ),
    ProblemType(
        "invalid_request",
        400,
        "Some fields are not valid",
        "One or more fields of the body or the query are unknown, missing or out of bounds. "
        "`errors` names each with a code, a message and, where there is one, a hint.",
        "Mend each field in `errors` and send the request again.",
    ),
    ProblemType(
        "invalid_cursor",
        400,
        "The cursor can't be used here",
        "The cursor is damaged, too old, or was made for another list, other filters or another "
        "tenant.",
        "Start again without `cursor`; pass each `next_cursor` unchanged, with the same filters.",
    ),
    ProblemType(
        "invalid_idempotency_key",
        400,
        "The Idempotency-Key is malformed",
        "The header is empty, longer than 255 characters, or holds something other than printable "
        "ASCII.",
        "Send a fresh UUID as the key.",
    ),
    ProblemType(
        "invalid_if_match",
        400,
        "The If-Match or If-None-Match header is malformed",
        'The header is not `*`, a version such as "3", or a comma-separated list of those.',
        "Send the ETag of your last read unchanged.",
    ),
    # --- 401, 403: who is asking, and may they ---
    ProblemType(
        "authentication_required",
        401,
        "An API key is needed",
        "The request has no `Authorization: Bearer` header, or another scheme.",
        "Send `Authorization: Bearer sk_…`.",
    ),
    ProblemType(
        "invalid_key",
        401,
        "The API key is not known",
        "The key is malformed, incomplete, or was never issued.",
        "Check that the whole key was copied, or have a new one issued.",
    ),
    ProblemType(
        "key_expired",
        401,
        "The API key has expired",
        "The key was right, and its time is over.",
        "Have a new key issued.",
    ),
    ProblemType(
        "key_revoked",
        401,
        "The API key was revoked",
        "The key was right, and somebody with the right to do so has revoked it.",
        "Use another key.",
    ),
    ProblemType(
        "tenant_suspended",
        403,
        "The tenant is suspended",
        "The key is valid, but the tenant may not use the service for now. Nothing was lost.",
        "Contact the operator.",
    ),
    ProblemType(
        "insufficient_scope",
        403,
        "The key's scope does not allow this",
        "The operation needs a scope that this key doesn't have; `detail` names it.",
        "Use a key with that scope. admin includes write, and write includes read.",
    ),
    ProblemType(
        "quota_exceeded",
        403,
        "A quota of the tenant is used up",
        "The request would exceed a limit of the tenant; `detail` names the limit and its value.",
        "Free some of it (see GET /v1/me), or ask the operator for more.",
    ),
    # --- 404 … 428: the request doesn't fit what is there ---
    ProblemType(
        "not_found",
        404,
        "There is nothing here",
        "No such address, or no such object of this tenant. Other tenants' objects look the same.",
        "Check the address and the id, and whether the key belongs to the right tenant.",
    ),
    ProblemType(
        "method_not_allowed",
        405,
        "The method is not allowed here",
        "The address exists, but not with this method; the `Allow` header lists those it has.",
        "Use one of the methods in `Allow`.",
    ),
    ProblemType(
        "not_acceptable",
        406,
        "The answer can't be given in that form",
        "The `Accept` header excludes application/json, the only form there is.",
        "Send `Accept: application/json`, or leave the header out.",
    ),
    ProblemType(
        "idempotency_in_progress",
        409,
        "A request with this Idempotency-Key is still being worked on",
        "Another copy of the request holds the key and has not finished.",
        "Wait for the time in `Retry-After` and send the same request again.",
    ),
    ProblemType(
        "run_is_final",
        409,
        "The run has already ended",
        "The run has reached a final status, which never changes.",
        "Nothing needs to be done. To run the job again, start a new run.",
    ),
    ProblemType(
        "webhook_off",
        409,
        "The webhook is switched off",
        "Nothing is delivered to a webhook that is off: you switched it off, or it had failed for "
        "three days or answered 410.",
        'Switch it on first: PATCH /v1/webhooks/{id} with {"enabled": true}.',
    ),
    ProblemType(
        "delivery_pending",
        409,
        "The delivery is still being tried",
        "A delivery that has neither succeeded nor been given up is tried again by itself.",
        "Wait for `next_attempt_at`, or mend the receiver.",
    ),
    ProblemType(
        "run_not_final",
        409,
        "The run has not ended yet",
        "Only a run that has ended can be replayed: this one may still succeed by itself.",
        "Wait for its end, or cancel it first.",
    ),
    ProblemType(
        "job_is_deleted",
        409,
        "The job of the run is deleted",
        "Nothing of a deleted job is run any more; its runs can be read, and not replayed.",
        "Create a job with the same task and run that.",
    ),
    ProblemType(
        "length_required",
        411,
        "The length of the body is needed",
        "The body came in chunks, which this server can't take.",
        "Send a Content-Length header.",
    ),
    ProblemType(
        "version_mismatch",
        412,
        "The object has changed in the meantime",
        "If-Match names a version that is no longer the current one. Nothing was changed.",
        "Read the object again, redo the change on it, and send its new ETag in If-Match.",
    ),
    ProblemType(
        "body_too_large",
        413,
        "The body is too large",
        "The body is larger than the server takes; `detail` gives the bound.",
        "Send less: large data belongs in storage that the job reads.",
    ),
    ProblemType(
        "uri_too_long",
        414,
        "The address is too long",
        "The request's first line, with its path and query, is longer than the server reads.",
        "Put fewer values into the query, or shorter ones.",
    ),
    ProblemType(
        "headers_too_large",
        431,
        "The headers are too large",
        "The request has more headers, or longer ones, than the server reads.",
        "Send only the headers that the API describes.",
    ),
    ProblemType(
        "unsupported_media_type",
        415,
        "The body has the wrong content type",
        "A body must be application/json in UTF-8.",
        "Send `Content-Type: application/json`.",
    ),
    ProblemType(
        "idempotency_key_reused",
        422,
        "The Idempotency-Key was used for another request",
        "The key was used in the last 24 hours with another address or another body.",
        "Use a fresh key for each new request, and the old one only to repeat the old request.",
    ),
    ProblemType(
        "precondition_required",
        428,
        "If-Match is needed",
        "A change must say which version it starts from, so that nobody's change is overwritten "
        "unseen.",
        "Send the ETag of your last read in If-Match, or `*` to change whatever is there.",
    ),
    # --- 429: too often ---
    ProblemType(
        "rate_limited",
        429,
        "Too many requests",
        "The key has used up its rate for this class of call; `RateLimit-Policy` gives the rate.",
        "Wait for the time in `Retry-After`, then go on more slowly.",
    ),
    ProblemType(
        "too_many_failed_authentications",
        429,
        "Too many failed authentications",
        "This address has sent many keys that are not valid. Requests with a valid key still work.",
        "Mend the key, and wait for the time in `Retry-After`.",
    ),
    # --- 5xx: our side ---
    ProblemType(
        "internal_error",
        500,
        "Something went wrong on our side",
        "An error that we did not foresee. It was recorded under the request id.",
        "Repeat the request with the same Idempotency-Key; if it stays, report the request id.",
    ),
    ProblemType(
        "database_unavailable",
        503,
        "The service is unavailable for the moment",
        "The database can't be reached. Jobs already stored are safe.",
        "Wait for the time in `Retry-After` and send the same request again, with the same "
        "Idempotency-Key.",
    ),
    ProblemType(
        "busy",
        503,
        "The service is too busy for this request",
        "The work took longer than is allowed, or waited too long for other work. Nothing was "
        "changed.",
        "Wait for the time in `Retry-After` and send the same request again.",
    ),
)

PROBLEMS: Final[dict[str, ProblemType]] = {problem.code: problem for problem in _PROBLEMS}

# Codes of single fields, in `errors[].code`, and what each means.
FIELD_CODES: Final[dict[str, str]] = {
    "unknown_field": "No such field here; the hint names the nearest one.",
    "required": "The field must be given.",
    "null": "null is not accepted; leave the field out instead.",
    "wrong_type": "The value has another JSON type than the field: a text for a number, say.",
    "blank": "An empty text is not accepted.",
    "too_short": "Fewer characters or items than needed.",
    "too_long": "More characters, bytes or items than allowed.",
    "too_small": "The number is below the lowest allowed.",
    "too_large": "The number is above the highest allowed.",
    "invalid": "The value does not have the form the field needs.",
    "invalid_choice": "The value is none of those allowed; the message lists them.",
    "invalid_instant": "Not an RFC 3339 date and time with its offset, or one that doesn't exist.",
    "invalid_uuid": "Not a UUID.",
    "invalid_character": "The text holds a character that is not allowed: NUL, a control character "
    "or half of a surrogate pair.",
    "duplicate_key": "The JSON object has this key more than once.",
    "not_finite": "NaN and Infinity are not JSON numbers.",
    "repeated": "The query parameter was given more than once.",
    "invalid_schedule": "The schedule has not exactly one of its forms.",
    "invalid_cron": "The cron expression is not one we run; the message says where.",
    "invalid_time_zone": "Not the exact name of an IANA time zone.",
    "invalid_at": "The instant of a one-off is malformed or can't be used.",
    "invalid_every": "The interval is malformed or out of bounds.",
    "never_fires": "The schedule has no occurrence at all.",
    "ends_before_start": "The end lies before the beginning.",
    "in_past": "The instant must lie in the future.",
    "in_future": "The instant must not lie in the future.",
    "before_history": "Earlier than the job itself, or than the oldest day that is kept.",
    "too_many": "More occurrences than one request may ask for.",
    "not_paused": "The job is not paused.",
    "too_frequent": "The occurrences are closer together than the tenant's `min_interval_s`.",
    "invalid_image": "Not an image reference: registry/path:tag or registry/path@digest.",
    "image_not_allowed": "The tenant's image allow list has no prefix of this image.",
    "invalid_env_name": "Not a name that an environment variable can have.",
    "reserved_env_name": "A name that the scheduler sets in every container, or keeps for itself.",
    "invalid_exit_code": "Not an exit code from 1 to 255 nor a range of them, or in both lists.",
    "invalid_label_name": "Not a name that a label can have.",
    "invalid_webhook_url": "Not a URL that webhooks may go to: https, a public address, no "
    "credentials; the message says what is wrong.",
}
