"""The docs hang together: links lead somewhere, decisions are numbered, listed and complete."""

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
DOCS = CHECKOUT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_links_between_files_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
    local = [target for target in targets if "://" not in target and not target.startswith("/")]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_decisions_are_numbered_without_a_gap() -> None:
    assert [int(page.name[:4]) for page in DECISIONS] == list(range(1, len(DECISIONS) + 1))


def test_every_decision_is_listed_by_its_title() -> None:
    index = (DOCS / "decisions" / "README.md").read_text()
    for page in DECISIONS:
        title = page.read_text().splitlines()[0].removeprefix("# ")
        assert f"- [{title}]({page.name})" in index


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.name[:4])
def test_a_decision_says_context_decision_price_and_what_would_change_it(page: Path) -> None:
    found = re.findall(r"^\*\*([^*]+)\.\*\* \S", page.read_text(), re.M)
    assert found == ["Context", "Decision", "Price", "What would change our mind"]


@pytest.mark.parametrize("page", ["architecture.md", "lease-and-fence.md"])
def test_files_that_the_pages_name_exist(page: str) -> None:
    named = set(re.findall(r"`([a-z_]+/[\w/]+\.(?:py|sql))`", (DOCS / page).read_text()))
    assert named
    assert [name for name in sorted(named) if not (CHECKOUT / name).exists()] == []
