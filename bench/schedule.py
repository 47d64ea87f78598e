"""How long does "when next?" take? Beside cronsim and croniter, asked the same question.

Prints a JSON line each for: one uncached question (expression parsed before, and everything
cold), a cached one, the planner's question (200,000 jobs over a few hundred schedules), a refusal,
the slowest accepted expression found, and a year's outage of a minutely job.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import product
from statistics import median
from typing import Any

from croniter import croniter
from cronsim import CronSim

from jobs.domain import calendar_days, counting, cron
from jobs.domain import schedule as engine
from jobs.domain.misfire import Cursor, Misfire, decide
from jobs.domain.schedule import CronSchedule, ScheduleError, load_zone, next_occurrence

AFTER = datetime(2026, 10, 16, 3, 17, tzinfo=UTC)
EXPRESSIONS = ("* * * * *", "*/5 * * * *", "0 9 * * 1-5", "30 2 * * *", "30 4 1,15 * 5",
               "0 0 1 1 *", "0 0 29 2 *")  # fmt: skip
ZONES = ("UTC", "America/New_York", "Asia/Kolkata")
UNCACHED_LIMIT = 3.0  # times cronsim
ACCEPTED_LIMIT_US = 5_000
REFUSED_LIMIT_US = 1_000


def microseconds(ask: Callable[[], Any], prepare: Callable[[], Any] = lambda: None) -> float:
    """The median of 200 askings, each after `prepare` (not timed)."""
    taken = []
    for _ in range(200):
        prepare()
        started = time.perf_counter()
        ask()
        taken.append(time.perf_counter() - started)
    return median(taken) * 1e6


def forget_answers() -> None:
    engine._next_cron.cache_clear()


def forget_everything() -> None:
    forget_answers()
    cron._parse_bounded.cache_clear()
    engine._date_walker.cache_clear()
    calendar_days.minutes_of_day.cache_clear()


def report(question: str, **numbers: Any) -> None:
    rounded = {k: round(v, 2) if isinstance(v, float) else v for k, v in numbers.items()}
    print(json.dumps({"bench": "schedule", "question": question} | rounded), flush=True)


def one_question() -> None:
    for text, zone_name in product(EXPRESSIONS, ZONES):
        schedule, zone = CronSchedule(text, zone_name), load_zone(zone_name)
        local = AFTER.astimezone(zone)

        def ask(schedule: CronSchedule = schedule) -> object:
            return next_occurrence(schedule, AFTER)

        cronsim_us = microseconds(lambda: next(CronSim(text, local)))  # noqa: B023
        uncached_us = microseconds(ask, forget_answers)
        cold_us = microseconds(ask, forget_everything)
        report(
            "next, uncached", expression=text, time_zone=zone_name, ours_us=uncached_us,
            ours_cold_us=cold_us, ours_cached_us=microseconds(ask),
            cronsim_us=cronsim_us,
            croniter_us=microseconds(lambda: croniter(text, local).get_next(datetime)),  # noqa: B023
            times_cronsim=uncached_us / cronsim_us, times_cronsim_cold=cold_us / cronsim_us,
            limit_times=UNCACHED_LIMIT,
        )  # fmt: skip


def planner() -> None:
    texts = [f"{minute} {hour} * * *" for minute, hour in product(range(0, 60, 5), range(10))]
    schedules = [CronSchedule(text, zone) for text in texts for zone in ZONES]
    forget_answers()
    started = time.perf_counter()
    for index in range(200_000):
        next_occurrence(schedules[index % len(schedules)], AFTER)
    elapsed = time.perf_counter() - started
    report("plan 200,000 jobs", schedules=len(schedules), seconds=elapsed,
           computations=engine._next_cron.cache_info().misses, per_job_us=elapsed * 5)  # fmt: skip


def refusal() -> None:
    for text in ("0 0 L * *", "rate(5 minutes)", "1-" * 120, "*/" * 500_000):

        def ask(text: str = text) -> None:
            try:
                cron.parse_cron(text)
            except ScheduleError:
                return

        report("refuse", expression=text[:20], ours_us=microseconds(ask),
               limit_us=REFUSED_LIMIT_US)  # fmt: skip


def _once(schedule: CronSchedule, after: datetime) -> float:
    forget_answers()
    started = time.process_time()  # the machine's other work is not the expression's
    next_occurrence(schedule, after)
    return (time.process_time() - started) * 1e6


def slowest() -> None:
    """Expressions whose next date is far: leap days on a weekday, the 31st, across 2100."""
    worst = (0.0, "", "")
    fields = product(("0", "59", "*/7"), ("0", "23"), ("29", "31", "*/30"), ("2", "1,12", "*"),
                     ("*", "0", "*/6", "1-5"))  # fmt: skip
    for parts in fields:
        text = " ".join(parts)
        for after in (AFTER, datetime(2072, 3, 1, tzinfo=UTC), datetime(2096, 3, 1, tzinfo=UTC)):
            schedule = CronSchedule(text, "America/New_York")
            try:
                taken = min(_once(schedule, after) for _ in range(3))
            except ScheduleError:
                continue
            worst = max(worst, (taken, text, str(after)))
    report("slowest accepted", ours_us=worst[0], expression=worst[1], after=worst[2],
           limit_us=ACCEPTED_LIMIT_US)  # fmt: skip


def outage() -> None:
    cursor = Cursor(CronSchedule("* * * * *", "America/New_York"), AFTER)
    now = AFTER + timedelta(days=365)

    def forget() -> None:
        forget_answers()
        counting._count_cron.cache_clear()
        counting._latest_cron.cache_clear()
        calendar_days._count_days.cache_clear()

    def ask() -> object:
        return decide(cursor, Misfire(), now=now, until=now + timedelta(seconds=75))

    report("a year of a minutely job missed", ours_uncached_us=microseconds(ask, forget),
           ours_cached_us=microseconds(ask))  # fmt: skip


if __name__ == "__main__":
    one_question()
    planner()
    refusal()
    slowest()
    outage()
