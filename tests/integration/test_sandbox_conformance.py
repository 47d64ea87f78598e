"""What every sandbox must do: the real engine and the fake pass the same tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import uuid4

import pytest

from runs.domain.outcome import OutcomeCode, StopReason
from tests.support import sandboxes as programs
from tests.support.images import ensure_demo_image
from tests.support.sandboxes import container_spec, eventually
from workers.sandbox.base import (
    ContainerExit,
    ContainerGone,
    ContainerHandle,
    ContainerSpec,
    ImageNotFound,
    Sandbox,
    StaleFence,
)
from workers.sandbox.docker import DockerSandbox
from workers.sandbox.fake import FakeEngine, FakeSandbox

NEVER = threading.Event()
SandboxFactory = Callable[..., Sandbox]


@pytest.fixture(params=["docker", "fake"])
def make_sandbox(request: pytest.FixtureRequest) -> Iterator[SandboxFactory]:
    """Sandboxes of one instance on one engine; whatever they leave is removed at the end."""
    made: list[Sandbox] = []
    instance = f"test-{uuid4().hex[:8]}"
    engine = FakeEngine()
    engine.programs = {program.args: program.fake for program in programs.PROGRAMS}
    if request.param == "docker":
        ensure_demo_image()

    def make(*, instance: str = instance, node: str = "alpha") -> Sandbox:
        sandbox: Sandbox
        if request.param == "docker":
            sandbox = DockerSandbox(instance=instance, node=node)
        else:
            sandbox = FakeSandbox(engine, instance=instance, node=node)
        made.append(sandbox)
        return sandbox

    yield make
    for sandbox in made:
        for container in sandbox.list_ours():
            sandbox.remove(container.handle)
        sandbox.close()


@pytest.fixture
def sandbox(make_sandbox: SandboxFactory) -> Sandbox:
    return make_sandbox()


def run_to_end(sandbox: Sandbox, spec: ContainerSpec, timeout_s: float = 20) -> ContainerExit:
    handle = sandbox.prepare(spec)
    sandbox.start(handle)
    ended = sandbox.wait(handle, NEVER, timeout_s)
    assert ended is not None
    sandbox.remove(handle)
    return ended


def started(sandbox: Sandbox, program: programs.Program, **changes: object) -> ContainerHandle:
    handle = sandbox.prepare(container_spec(program.args, **changes))
    sandbox.start(handle)
    return handle


def test_exit_code_and_output_are_those_of_the_program(sandbox: Sandbox) -> None:
    ended = run_to_end(sandbox, container_spec(programs.PRINTS_AND_FAILS.args))
    assert (ended.exit_code, ended.signal, ended.output_truncated) == (3, None, False)
    assert sorted(ended.output.splitlines()) == [b"err", b"out"]
    assert ended.outcome().code is OutcomeCode.NON_ZERO_EXIT


def test_a_silent_program_that_ends_at_once_is_noticed_within_a_second(sandbox: Sandbox) -> None:
    handle = sandbox.prepare(container_spec(programs.SILENT.args))
    sandbox.start(handle)
    before = time.monotonic()
    ended = sandbox.wait(handle, NEVER, 20)
    assert time.monotonic() - before < 1
    assert ended is not None
    assert (ended.exit_code, ended.output) == (0, b"")
    assert ended.outcome().code is OutcomeCode.SUCCEEDED


def test_waiting_for_a_container_that_has_long_ended_returns_at_once(sandbox: Sandbox) -> None:
    handle = started(sandbox, programs.SILENT)
    assert eventually(lambda: sandbox.list_ours()[0].has_ended)
    for _ in range(2):
        ended = sandbox.wait(handle, NEVER, 20)
        assert ended is not None
        assert ended.exit_code == 0


def test_an_exit_is_noticed_by_a_sandbox_that_did_not_start_it(
    make_sandbox: SandboxFactory,
) -> None:
    handle = started(make_sandbox(), programs.HALF_A_SECOND)
    ended = make_sandbox().wait(handle, NEVER, 20)
    assert ended is not None
    assert ended.exit_code == 0


def test_start_and_end_are_the_engines_instants(sandbox: Sandbox) -> None:
    handle = sandbox.prepare(container_spec(programs.HALF_A_SECOND.args))
    started_at = sandbox.start(handle)
    ended = sandbox.wait(handle, NEVER, 20)
    assert ended is not None
    assert ended.started_at == started_at
    assert started_at.utcoffset() is not None
    assert ended.finished_at is not None
    assert 0.4 < (ended.finished_at - started_at).total_seconds() < 5


def test_the_time_limit_is_ours_and_ends_only_the_waiting(sandbox: Sandbox) -> None:
    handle = started(sandbox, programs.FOREVER)
    before = time.monotonic()
    assert sandbox.wait(handle, NEVER, 1.0) is None
    assert 1.0 <= time.monotonic() - before < 1.5
    assert [each.state for each in sandbox.list_ours()] == ["running"]
    killed = sandbox.kill(handle)
    assert killed.outcome(StopReason.TIMEOUT).code is OutcomeCode.TIMED_OUT
    sandbox.remove(handle)
    assert sandbox.list_ours() == []


def test_a_stop_request_ends_the_waiting_at_once(sandbox: Sandbox) -> None:
    handle = started(sandbox, programs.FOREVER)
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    before = time.monotonic()
    assert sandbox.wait(handle, stop, 60) is None
    assert time.monotonic() - before < 1


def test_stop_lets_the_program_leave_by_itself(sandbox: Sandbox) -> None:
    handle = started(sandbox, programs.LEAVES_ON_TERM)
    stopped = sandbox.stop(handle, grace_s=10)
    assert stopped.exit_code == 0
    assert stopped.outcome(StopReason.CANCEL).code is OutcomeCode.CANCELLED


def test_stop_ends_a_program_that_has_never_heard_of_signals(sandbox: Sandbox) -> None:
    handle = started(sandbox, programs.FOREVER)
    before = time.monotonic()
    stopped = sandbox.stop(handle, grace_s=20)
    assert time.monotonic() - before < 3
    assert (stopped.exit_code, stopped.signal) == (143, 15)


def test_stop_kills_a_program_that_ignores_it(sandbox: Sandbox) -> None:
    handle = started(sandbox, programs.IGNORES_TERM)
    before = time.monotonic()
    stopped = sandbox.stop(handle, grace_s=0.5)
    assert 0.5 <= time.monotonic() - before < 3
    assert (stopped.exit_code, stopped.signal) == (137, 9)


def test_kill_does_not_wait_for_a_program_that_ignores_signals(sandbox: Sandbox) -> None:
    handle = started(sandbox, programs.IGNORES_TERM)
    before = time.monotonic()
    assert sandbox.kill(handle).exit_code == 137
    assert time.monotonic() - before < 1
    assert [each.has_ended for each in sandbox.list_ours()] == [True]


def test_killing_what_has_ended_by_itself_tells_how_it_ended(sandbox: Sandbox) -> None:
    handle = started(sandbox, programs.PRINTS_AND_FAILS)
    assert sandbox.wait(handle, NEVER, 20) is not None
    assert sandbox.kill(handle).exit_code == 3
    assert sandbox.stop(handle, grace_s=5).exit_code == 3


def test_a_kill_by_somebody_else_is_noticed_by_the_waiting_thread(
    make_sandbox: SandboxFactory,
) -> None:
    sandbox = make_sandbox()
    handle = started(sandbox, programs.FOREVER)
    threading.Timer(0.3, make_sandbox().kill, args=(handle,)).start()
    ended = sandbox.wait(handle, NEVER, 20)
    assert ended is not None
    assert ended.outcome().code is OutcomeCode.SIGNAL


def test_a_container_removed_under_a_waiting_thread_is_a_lost_lease(
    make_sandbox: SandboxFactory,
) -> None:
    sandbox = make_sandbox()
    handle = started(sandbox, programs.FOREVER)
    make_sandbox().remove(handle)
    ended = sandbox.wait(handle, NEVER, 20)
    assert ended is not None
    assert ended.outcome(StopReason.LEASE_LOST).code is OutcomeCode.LEASE_EXPIRED


def test_a_container_that_never_started_has_not_succeeded(sandbox: Sandbox) -> None:
    handle = sandbox.prepare(container_spec())
    killed = sandbox.kill(handle)
    assert killed.exit_code is None
    assert killed.outcome().code is not OutcomeCode.SUCCEEDED


def test_a_paused_program_stands_still_and_goes_on_where_it_was(sandbox: Sandbox) -> None:
    handle = started(sandbox, programs.TWO_SECONDS)
    sandbox.pause(handle)
    sandbox.pause(handle)  # the answer to the first may have been lost
    (listed,) = sandbox.list_ours()
    assert (listed.state, listed.has_ended) == ("paused", False)
    assert sandbox.wait(handle, NEVER, 2.5) is None
    sandbox.unpause(handle)
    sandbox.unpause(handle)
    ended = sandbox.wait(handle, NEVER, 20)
    assert ended is not None
    assert ended.exit_code == 0


def test_what_does_not_run_needs_no_pause(sandbox: Sandbox) -> None:
    handle = started(sandbox, programs.SILENT)
    assert sandbox.wait(handle, NEVER, 20) is not None
    sandbox.pause(handle)
    sandbox.unpause(handle)
    sandbox.remove(handle)
    sandbox.pause(handle)
    sandbox.unpause(handle)


def test_a_paused_program_dies_of_a_kill_and_does_not_run_before(sandbox: Sandbox) -> None:
    handle = started(sandbox, programs.FOREVER)
    sandbox.pause(handle)
    before = time.monotonic()
    ended = sandbox.kill(handle)
    assert time.monotonic() - before < 5
    assert ended.signal == 9
    assert ended.outcome(StopReason.LEASE_LOST).code is OutcomeCode.LEASE_EXPIRED
    assert sandbox.wait(handle, NEVER, 5) is not None


def test_a_paused_container_can_be_removed(sandbox: Sandbox) -> None:
    handle = started(sandbox, programs.FOREVER)
    sandbox.pause(handle)
    sandbox.remove(handle)
    assert sandbox.list_ours() == []


def test_remove_takes_a_container_in_any_state_and_twice(sandbox: Sandbox) -> None:
    created = sandbox.prepare(container_spec())
    running = started(sandbox, programs.FOREVER)
    ended = started(sandbox, programs.SILENT)
    assert sandbox.wait(ended, NEVER, 20) is not None
    for handle in (created, running, ended):
        sandbox.remove(handle)
        sandbox.remove(handle)
    assert sandbox.list_ours() == []


def test_a_removed_container_cannot_be_started(sandbox: Sandbox) -> None:
    handle = sandbox.prepare(container_spec())
    sandbox.remove(handle)
    with pytest.raises(ContainerGone) as refused:
        sandbox.start(handle)
    assert refused.value.outcome is OutcomeCode.LEASE_EXPIRED


def test_starting_twice_runs_the_program_once(sandbox: Sandbox) -> None:
    handle = sandbox.prepare(container_spec(programs.SILENT.args))
    first = sandbox.start(handle)
    assert sandbox.wait(handle, NEVER, 20) is not None
    assert sandbox.start(handle) == first
    assert [each.has_ended for each in sandbox.list_ours()] == [True]


def test_preparing_twice_gives_the_same_container(sandbox: Sandbox) -> None:
    spec = container_spec()
    assert sandbox.prepare(spec) == sandbox.prepare(spec)
    assert len(sandbox.list_ours()) == 1


def test_a_newer_lease_replaces_the_running_container_of_an_older_one(
    make_sandbox: SandboxFactory,
) -> None:
    sandbox = make_sandbox()
    old = container_spec(programs.FOREVER.args)
    old_handle = sandbox.prepare(old)
    sandbox.start(old_handle)
    new = replace(old, fence=old.fence + 1, session_id=uuid4())
    new_handle = make_sandbox().prepare(new)
    assert [each.handle for each in sandbox.list_ours()] == [new_handle]
    assert new_handle.name == old_handle.name
    ended = sandbox.wait(old_handle, NEVER, 20)
    assert ended is not None


def test_an_older_lease_cannot_touch_the_container_of_a_newer_one(sandbox: Sandbox) -> None:
    new = container_spec(programs.FOREVER.args)
    handle = sandbox.prepare(new)
    sandbox.start(handle)
    with pytest.raises(StaleFence):
        sandbox.prepare(replace(new, fence=new.fence - 1, session_id=uuid4()))
    assert [each.state for each in sandbox.list_ours()] == ["running"]


def test_a_lease_whose_container_has_run_gets_no_second_one(sandbox: Sandbox) -> None:
    spec = container_spec(programs.SILENT.args)
    handle = sandbox.prepare(spec)
    sandbox.start(handle)
    assert sandbox.wait(handle, NEVER, 20) is not None
    with pytest.raises(StaleFence):
        sandbox.prepare(spec)


def test_a_cancelled_run_leaves_nothing_in_the_way_of_the_next(sandbox: Sandbox) -> None:
    spec = container_spec(programs.FOREVER.args)
    handle = sandbox.prepare(spec)
    sandbox.start(handle)
    sandbox.stop(handle, grace_s=0)
    sandbox.remove(handle)
    again = replace(spec, args=programs.SILENT.args, fence=spec.fence + 1)
    assert run_to_end(sandbox, again).exit_code == 0
    assert sandbox.list_ours() == []


def test_a_missing_image_is_a_permanent_error_of_the_customers(sandbox: Sandbox) -> None:
    with pytest.raises(ImageNotFound) as missing:
        sandbox.prepare(container_spec(image="registry.invalid/acme/report:3"))
    assert missing.value.permanent
    assert sandbox.list_ours() == []


def test_a_missing_program_is_a_bad_command_and_not_exit_127(sandbox: Sandbox) -> None:
    ended = run_to_end(sandbox, container_spec(programs.NO_SUCH_PROGRAM.args))
    verdict = ended.outcome()
    assert (verdict.code, verdict.permanent) == (OutcomeCode.BAD_COMMAND, True)
    assert "no-such-program" in verdict.message


def test_a_program_that_may_not_be_executed_is_permission_denied(sandbox: Sandbox) -> None:
    verdict = run_to_end(sandbox, container_spec(programs.NOT_EXECUTABLE.args)).outcome()
    assert (verdict.code, verdict.permanent) == (OutcomeCode.PERMISSION_DENIED, True)


def test_a_program_killed_for_memory_is_out_of_memory(sandbox: Sandbox) -> None:
    verdict = run_to_end(sandbox, container_spec(programs.EATS_MEMORY.args)).outcome()
    assert verdict.code is OutcomeCode.OUT_OF_MEMORY


def test_a_child_killed_for_memory_does_not_fail_a_program_that_succeeds(
    sandbox: Sandbox,
) -> None:
    ended = run_to_end(sandbox, container_spec(programs.CHILD_EATS_MEMORY.args))
    assert ended.oom_killed
    assert ended.outcome().code is OutcomeCode.SUCCEEDED


def test_only_the_end_of_long_output_is_kept_and_says_so(sandbox: Sandbox) -> None:
    ended = run_to_end(sandbox, container_spec(programs.TALKATIVE.args))
    assert ended.output_truncated
    assert len(ended.output) == 16 * 1024
    assert ended.output.endswith(b"199998\n199999\n")


def test_lists_are_by_session_and_by_instance_and_node(make_sandbox: SandboxFactory) -> None:
    sandbox = make_sandbox()
    session, other = uuid4(), uuid4()
    mine = sandbox.prepare(container_spec(session_id=session))
    theirs = sandbox.prepare(container_spec(session_id=other))
    assert [each.handle for each in sandbox.list_ours(session)] == [mine]
    assert {each.handle for each in sandbox.list_ours()} == {mine, theirs}
    assert make_sandbox(instance=f"other-{uuid4().hex[:8]}").list_ours() == []
    assert make_sandbox(node="beta").list_ours() == []


def test_an_engine_that_answers_pings(sandbox: Sandbox) -> None:
    assert sandbox.ping()
