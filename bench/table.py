"""One table of the facts that benchmarks print: what was asked, the answer, what stands beside it.

Owns the rule that every figure stands beside a limit, or beside a peer of the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Fact = Mapping[str, Any]
_HEAD = ("question", "answer", "beside", "target", "")


@dataclass(frozen=True)
class Row:
    """One figure. `holds`: whether the target is met; None where there is none."""

    question: str
    answer: str
    beside: str = ""
    target: str = ""
    holds: bool | None = None

    def cells(self) -> tuple[str, ...]:
        verdict = {True: "holds", False: "MISSED", None: ""}[self.holds]
        return self.question, self.answer, self.beside, self.target, verdict


def rows_of(fact: Fact) -> list[Row]:
    """The rows of one printed fact; none for a single round or for what is no summary."""
    # bench/api.py calls its own name differently: its questions are requests.
    maker = _MAKERS.get(str(fact.get("bench") or fact.get("question")))
    return maker(fact) if maker else []


def table(rows: Iterable[Row]) -> str:
    """The rows as text, in columns."""
    lines = [_HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(_HEAD))]
    rule = tuple("-" * width for width in widths)
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [lines[0], rule, *lines[1:]]
    )


def number(value: float) -> str:
    """A figure as a person reads it: 12,300, 48.5 or 0.021."""
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 or value == 0 else f"{value:.1g}"


def _ratio(fact: Fact, question: str, answer: str, beside: str) -> list[Row]:
    ratio, target = fact["ratio"], fact["target"]
    return [Row(question, answer, f"{beside}: × {number(ratio)}", f"≥ {target}", ratio >= target)]


def _plan(fact: Fact) -> list[Row]:
    answer, bare = number(fact["runs_per_s"]), number(fact["bare_rows_per_s"])
    return _ratio(fact, "plan, runs/s", answer, f"COPY and UPDATE {bare}")


def _publish(fact: Fact) -> list[Row]:
    rate, bare = fact["runs_per_s"], number(fact["bare_messages_per_s"])
    least = fact["target_per_s"]
    return [
        *_ratio(fact, "place and publish, runs/s", number(rate), f"bare kombu {bare}"),
        Row("place and publish, runs/s", number(rate), "", f"≥ {number(least)}", rate >= least),
    ]


def _drain(fact: Fact) -> list[Row]:
    of, kept = fact["of"], not (fact["lost"] or fact["doubled"] or fact["early"])
    answer = f"{number(fact['runs_per_s'])} runs/s"
    lag = f"lag p50 {number(fact['lag_p50_s'])} s, p99 {number(fact['lag_p99_s'])} s"
    ends = f"lost {fact['lost']}, doubled {fact['doubled']}, early {fact['early']}"
    if of != "product":
        return [Row(f"drain, {of}", answer, f"{lag}; {ends}")]
    rows = [Row("drain, product", answer, f"{lag}; {ends}", "none lost or doubled", kept)]
    if "ratio" in fact:
        rows += _ratio(fact, "drain, product", answer, "bare Celery ETA")
    return rows


def _burst(fact: Fact) -> list[Row]:
    rows = [
        Row(
            f"burst, {name.replace('_', ' ')}",
            number(fact[name]),
            f"{number(fact['runs'])} runs",
            f"≤ {number(most)}",
            fact[name] <= most,
        )
        for name, most in fact["limits"].items()
    ]
    return [*rows, Row("burst, lost", str(fact["lost"]), "", "0", not fact["lost"])]


def _recovery(fact: Fact) -> list[Row]:
    beside = (
        f"worst lag {number(fact['worst_lag_s'])} s (usual {number(fact['usual_lag_s'])} s);"
        f" late {number(fact['late'])}, again {number(fact['ran_again'])}"
    )
    lost = fact["lost"]
    return [
        Row(
            f"recovery, SIGKILL of a {fact['of']}".replace("a redis", "Redis"),
            f"{number(fact['on_time_after_s'])} s",
            beside,
            "none lost",
            not lost,
        )
    ]


def _growth(fact: Fact) -> list[Row]:
    beside = f"{number(fact['jobs'])} jobs, {number(fact['runs'])} runs"
    ratio, limit = fact["ratio"], fact["limit"]
    holds, sign = (ratio >= limit, "≥") if fact["more_is_better"] else (ratio <= limit, "≤")
    return [
        Row(
            f"growth, {fact['of']}",
            number(fact["grown"]),
            f"small {number(fact['small'])}: × {number(ratio)}; {beside}",
            f"{sign} {limit}",
            holds,
        )
    ]


def _api(fact: Fact) -> list[Row]:
    if fact.get("kind") != "result" or fact.get("of") != "product":
        return []
    times, limit = fact["times_p95"], fact["limit_times_p95"]
    answer = f"p95 {number(fact['p95_ms'])} ms"
    return [Row(f"api, {fact['question']}", answer, f"bare view × {number(times)}", f"≤ {limit}",
                times <= limit)]  # fmt: skip


_MAKERS: dict[str, Callable[[Fact], list[Row]]] = {
    "plan": _plan,
    "place and publish": _publish,
    "drain": _drain,
    "burst": _burst,
    "recovery": _recovery,
    "growth": _growth,
    "api": _api,
}
