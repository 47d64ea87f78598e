"""What the pages about faults name is there: tests, violations, complaints."""

import re
from pathlib import Path

import pytest

from runs.domain.violation import Kind
from workers.doctor import Doctor
from workers.sandbox.fake import FakeSandbox

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs" / "when-things-break.md").read_text()
LEASE_PAGE = (CHECKOUT / "docs" / "lease-and-fence.md").read_text()


def section(title: str) -> str:
    (found,) = re.findall(rf"^## {title}.*?\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    return str(found)


def first_column(text: str) -> set[str]:
    return {
        code
        for cell in re.findall(r"^\| (`.*?) \|", text, re.M)
        for code in re.findall(r"`(\w+)`", cell)
    }


@pytest.mark.parametrize("page", [PAGE, LEASE_PAGE], ids=["when-things-break", "lease-and-fence"])
def test_every_test_that_the_page_names_exists(page: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", page))
    code = "".join(path.read_text() for path in (CHECKOUT / "tests").rglob("test_*.py"))

    assert len(named) > 40
    assert [name for name in sorted(named) if f"def {name}(" not in code] == []


def test_every_reported_accident_has_its_report_its_outcome_and_a_test() -> None:
    rows = [
        row.strip("|").split("|")
        for row in section("What has happened elsewhere").splitlines()
        if "https://" in row
    ]
    assert len(rows) == 49, "one for each of the reports that we go by"
    assert len({what for what, *_ in rows}) == len(rows)
    for _, reported, here, test in rows:
        assert "](https://" in reported
        assert here.strip()
        assert re.search(r"`test_\w+`", test), f"no test: {here}"


def test_every_violation_is_explained_and_no_other() -> None:
    assert first_column(section("Prove it")) == {kind.value for kind in Kind}


def test_every_complaint_of_the_doctor_is_explained_and_no_other() -> None:
    codes = {complaint.code for complaint in Doctor(FakeSandbox()).complaints()}
    assert first_column(section("Mend it")) == codes


@pytest.mark.parametrize("title", ["Parts that fail", "What has happened elsewhere"])
def test_no_cell_is_empty(title: str) -> None:
    rows = [line for line in section(title).splitlines() if line.startswith("| ")]
    assert len(rows) > 10
    assert all(cell.strip() for row in rows for cell in row.strip("|").split("|"))
