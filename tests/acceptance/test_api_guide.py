"""docs/api.md: every curl example does what the page says, against a live stack."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scheduler_project.stack.debian import install
from tests.support.polling import poll
from tests.support.stack_under_test import StackUnderTest

GUIDE = Path(__file__).parent.parent.parent / "docs" / "api.md"
# An example with the status it gets, and the answer where the page shows one.
EXAMPLE = re.compile(
    r"^```sh (?P<status>\d{3})\n(?P<script>.*?)^```\n(?:\n```json\n(?P<answer>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)


@pytest.fixture(scope="module")
def curl() -> str:
    """The program of the examples; installed when it is missing."""
    if shutil.which("curl") is None:
        install("curl")
    found = shutil.which("curl")
    assert found is not None
    return found


@pytest.mark.stack(schedulers=1, workers=1)
def test_every_example_of_the_guide_does_what_the_page_says(
    stack: StackUnderTest, curl: str, tmp_path: Path
) -> None:
    # Adds the status to what curl prints, without a word of it in the examples.
    (tmp_path / ".curlrc").write_text('write-out = "\\n%{http_code}"\n')
    variables = {
        "PATH": f"{Path(curl).parent}:{os.environ['PATH']}",
        "CURL_HOME": str(tmp_path),
        "NO_PROXY": "*",
        "API_URL": str(stack.client.base_url),
        "API_KEY": stack.client.headers["Authorization"].removeprefix("Bearer "),
        "DEMO_IMAGE": stack.demo_image,
    }
    examples = list(EXAMPLE.finditer(GUIDE.read_text(encoding="utf-8")))
    assert len(examples) >= 12
    for example in examples:
        _wait_for_run(stack, variables)
        status, answer = _execute(example["script"], variables)
        assert status == example["status"], f"{example['script']}\n{answer}"
        if example["answer"]:
            _assert_shape(json.loads(example["answer"]), answer, "answer")
        for name in ("job_id", "run_id"):
            if isinstance(answer, dict) and name in answer:
                variables[name.upper()] = answer[name]


def _execute(script: str, variables: dict[str, str]) -> tuple[str, Any]:
    done = subprocess.run(
        ["bash", "-eu", "-c", script], env=variables, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"{script}\n{done.stderr}"
    text, _, status = done.stdout.rpartition("\n")
    return status, json.loads(text) if text else None


def _wait_for_run(stack: StackUnderTest, variables: dict[str, str]) -> None:
    """A reader looks after a moment, too: the page shows a run that has ended."""
    if run_id := variables.get("RUN_ID"):
        poll(lambda: stack.client.get(f"/v1/runs/{run_id}").json()["finished_at"], 60, "the run")


def _assert_shape(shown: Any, real: Any, path: str) -> None:
    """What the page shows is there: the same members, of the same types; states word for word."""
    assert type(shown) is type(real), f"{path}: {shown!r} is shown, {real!r} came"
    if isinstance(shown, dict):
        for name, value in shown.items():
            assert name in real, f"{path}.{name} is shown and did not come"
            _assert_shape(value, real[name], f"{path}.{name}")
    elif isinstance(shown, list):
        if shown:
            assert real, f"{path} is shown with items and came empty"
            _assert_shape(shown[0], real[0], f"{path}[0]")
    elif not isinstance(shown, float) and not _differs_each_time(path):
        assert shown == real, f"{path}: {shown!r} is shown, {real!r} came"


def _differs_each_time(path: str) -> bool:
    return path.endswith(("_id", "_at", "fence", "output_tail", "next_runs[0]"))
