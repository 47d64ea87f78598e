"""How other schedulers write a schedule; its rule: recognise it only to name our form for it."""

from __future__ import annotations

import re
from typing import Final

from jobs.domain.schedule_error import shown

_WORDS: Final = {"weekly": "@weekly", "daily": "@daily", "hourly": "@hourly",
                 "monthly": "@monthly", "yearly": "@yearly", "annually": "@annually",
                 "quarterly": "0 0 1 1,4,7,10 *", "minutely": "* * * * *"}  # fmt: skip
_UNITS: Final = {"minute": "m", "hour": "h", "day": "d", "week": "w"}
_NAME: Final = "JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC|SUN|MON|TUE|WED|THU|FRI|SAT"
_CHECK: Final = "let the task check the date (both day fields together mean OR)"
# What other schedulers allow inside a field: its shape, its name, our form.
_SYNTAX: Final = (
    (re.compile(r"\?.*|.*\?"), "? (Quartz)", 'write "*"'),
    (re.compile(r".*#.*"), "# (n-th weekday of the month)",
     f'the days it may fall on ("8-14" for the second), and {_CHECK}'),
    (re.compile(rf"(\d*|{_NAME})(W|LW|WL)"), "W (nearest weekday)",
     f'the days it may fall on ("1-3" for 1W), and {_CHECK}'),
    (re.compile(rf"(\d*|{_NAME})L(-\d+)?"), "L (last)",
     f'the days it may fall on ("28-31"), and {_CHECK}'),
    (re.compile(r"[HR](\W.*)?"), "H or R (a value that the scheduler picks)",
     "a fixed value; to spread load set flexible_window_s"),
)  # fmt: skip
_SECONDS_HINT: Final = "five fields, without seconds: the finest cadence is a minute"


def foreign_form(text: str) -> str:
    """A hint for `text` in our own terms, "" when the form isn't recognised.

    Text is at most a few hundred characters and the patterns have no nested repetition, so the
    work is bounded.
    """
    lowered = text.lower()
    if lowered.startswith("@"):
        return _macro(lowered)
    if lowered in _WORDS:
        return f'"{_WORDS[lowered]}"'
    if lowered.startswith(("tz=", "cron_tz=")):
        return "the zone goes into schedule.time_zone"
    if lowered.startswith("cron("):
        return "EventBridge form: five fields without cron(), ? and the year"
    if lowered.startswith("crontab("):
        return 'Celery form: the five fields as text, for instance "30 7 * * 1"'
    if "#" in lowered and len(lowered.split("#")[0].split()) == 5:
        return "the five fields alone, without a comment"
    return _interval(lowered) or _calendar(lowered) or _fields(text)


def foreign_syntax(item: str) -> tuple[str, str] | None:
    """Message and hint for an upper-case list item in another scheduler's syntax, or None."""
    for shape, name, hint in _SYNTAX:
        if shape.fullmatch(item):
            return f"{name} in {shown(item)} is not supported", hint
    return None


def _macro(text: str) -> str:
    if text.startswith("@every"):
        return 'schedule.every, for instance {"every": "5m"}'
    if text == "@reboot":
        return "a service has no reboot; run the job now, or use schedule.at"
    if text in {"@once", "@at"}:
        return 'schedule.at, for instance {"at": "2027-03-01T15:00:00Z"}'
    return ""


def _interval(text: str) -> str:
    rate = re.fullmatch(r"(?:rate\(|every )?(\d{1,6}) ?(m|h|d|w|minute|hour|day|week)s?\)?", text)
    if rate is None:
        return 'schedule.every, for instance {"every": "5m"}' if text.startswith("rate(") else ""
    unit = rate[2] if len(rate[2]) == 1 else _UNITS[rate[2]]
    return f'schedule.every: {{"every": "{int(rate[1])}{unit}"}}'


def _calendar(text: str) -> str:
    clock = re.search(r"(?:^|\s)(\d{1,2}):(\d{2})", text)
    if clock is not None and int(clock[1]) < 24 and int(clock[2]) < 60:
        fields = f"{int(clock[2])} {int(clock[1])} * * *"
        return f'five fields; {clock[0].strip()} every day is "{fields}"'
    if ":" in text:
        return 'five fields, for instance "*/15 * * * *" for every quarter of an hour'
    return ""


def _fields(text: str) -> str:
    parts = text.split()
    if len(parts) == 6 and parts[0].isdigit() and "?" not in text:
        return f'{_SECONDS_HINT}; "{" ".join(parts[1:])}" without the first field'
    if len(parts) in (6, 7) and all(re.search(r"[\d*?]", part) for part in parts):
        return _SECONDS_HINT
    return ""
