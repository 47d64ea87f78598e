"""What a real container may do, sees and leaves behind."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import docker
import pytest

from runs.domain.outcome import OutcomeCode
from tests.support.images import ensure_demo_image, ensure_image
from tests.support.sandboxes import container_spec, eventually, shell
from workers.sandbox.base import (
    BadCommand,
    ContainerExit,
    ContainerHandle,
    ContainerSpec,
    EngineUnreachable,
    ImageNotFound,
)
from workers.sandbox.docker import DockerSandbox

NEVER = threading.Event()
# Without a command or a user of its own.
PLAIN_IMAGE = "scheduler-test-plain:latest"
VOLUME_IMAGE = "scheduler-test-volume:latest"


@pytest.fixture
def instance() -> str:
    return f"test-{uuid4().hex[:8]}"


@pytest.fixture
def sandbox(instance: str) -> Iterator[DockerSandbox]:
    ensure_demo_image()
    sandbox = DockerSandbox(instance=instance, node="alpha")
    yield sandbox
    for container in sandbox.list_ours():
        sandbox.remove(container.handle)
    sandbox.close()


@pytest.fixture
def engine() -> Iterator[docker.APIClient]:
    client = docker.APIClient(version="auto", timeout=20)
    yield client
    client.close()


def run(sandbox: DockerSandbox, spec: ContainerSpec, timeout_s: float = 60) -> ContainerExit:
    handle = sandbox.prepare(spec)
    sandbox.start(handle)
    ended = sandbox.wait(handle, NEVER, timeout_s)
    assert ended is not None
    sandbox.remove(handle)
    return ended


def says(sandbox: DockerSandbox, script: str, **changes: object) -> str:
    ended = run(sandbox, container_spec(shell(script), **changes))
    return ended.output.decode()


# What the program is given.


def test_arguments_reach_the_program_untouched(sandbox: DockerSandbox) -> None:
    hostile = ["$(id)", "`id`", "; rm -rf /", "a b", "*", "\\n", "'\"", "", "--rm", "-v", "/:/h"]
    ended = run(sandbox, container_spec(("printf", "[%s]\\n", *hostile)))
    assert ended.output.decode().splitlines() == [f"[{each}]" for each in hostile]


def test_the_environment_keeps_equal_signs_and_line_breaks(sandbox: DockerSandbox) -> None:
    env = {"TOKEN": "bobsyouruncle==", "MULTI": "a\nb", "EMPTY": ""}
    said = says(sandbox, 'echo "$TOKEN|$MULTI|${EMPTY-unset}|"', env=env)
    assert said == "bobsyouruncle==|a\nb||\n"


def test_no_arguments_mean_the_images_own_command(sandbox: DockerSandbox) -> None:
    image = ensure_image("scheduler-test-cmd:latest", changes=('CMD ["echo", "from the image"]',))
    for args in (None, ()):
        ended = run(sandbox, container_spec(image=image, args=args))
        assert ended.output == b"from the image\n"


def test_an_image_without_a_command_is_a_bad_command(sandbox: DockerSandbox) -> None:
    with pytest.raises(BadCommand, match=r"(?i)no command specified"):
        sandbox.prepare(container_spec(args=(), image=ensure_image(PLAIN_IMAGE)))


@pytest.mark.parametrize("digits", [4, 12, 64])
def test_the_id_of_an_image_on_the_node_is_no_name(
    engine: docker.APIClient, instance: str, digits: int
) -> None:
    algorithm, _, encoded = engine.inspect_image(ensure_demo_image())["Id"].partition(":")
    names = [f"{algorithm}:{encoded[:digits]}"]
    if digits < 64:  # the grammar refuses a whole id as a name
        names.append(encoded[:digits])
    with closing(DockerSandbox(instance=instance, node="alpha", pull="never")) as sandbox:
        for name in names:
            with pytest.raises(ImageNotFound):
                sandbox.prepare(container_spec(image=name))


def test_labels_say_whose_container_it_is(
    sandbox: DockerSandbox, engine: docker.APIClient, instance: str
) -> None:
    spec = container_spec()
    handle = sandbox.prepare(spec)
    inspected = engine.inspect_container(handle.container_id)
    assert inspected["Name"] == f"/run-{spec.run_id}-{spec.attempt}-{instance}"
    expected = {
        "scheduler.instance": instance,
        "scheduler.node": "alpha",
        "scheduler.session": str(spec.session_id),
        "scheduler.run_id": str(spec.run_id),
        "scheduler.attempt": str(spec.attempt),
        "scheduler.fence": str(spec.fence),
        "scheduler.job_id": str(spec.job_id),
        "scheduler.tenant_id": str(spec.tenant_id),
    }
    assert expected.items() <= inspected["Config"]["Labels"].items()


def test_a_stranger_that_inherited_our_labels_from_its_image_is_not_ours(
    sandbox: DockerSandbox, engine: docker.APIClient
) -> None:
    handle = sandbox.prepare(container_spec())
    image = engine.commit(handle.container_id)["Id"]
    stranger = engine.create_container(image, ["true"])["Id"]
    try:
        assert [each.handle for each in sandbox.list_ours()] == [handle]
    finally:
        engine.remove_container(stranger, force=True)
        engine.remove_image(image, force=True)


# What the program may not do.


def test_a_program_has_no_capabilities_and_no_way_to_gain_any(sandbox: DockerSandbox) -> None:
    status = dict(
        line.split(":", 1) for line in says(sandbox, "cat /proc/self/status").splitlines()
    )
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"
    assert status["Uid"].split() == ["65534"] * 4


def test_root_is_only_who_was_allowed_to_be_and_still_without_capabilities(
    sandbox: DockerSandbox,
) -> None:
    said = says(
        sandbox,
        "id -u; grep CapEff /proc/self/status; touch /tmp/x",
        user="",
        image=ensure_image(PLAIN_IMAGE),
    )
    assert said.split() == ["0", "CapEff:", "0000000000000000"]


def test_only_tmp_can_be_written_and_only_so_much(sandbox: DockerSandbox) -> None:
    said = says(
        sandbox,
        # Without the complaints: the engine keeps no order between the two streams.
        "exec 2>/dev/null; touch /x || echo root; touch /etc/x || echo etc;"
        " touch /proc/sys/kernel/x || echo proc;"
        " dd if=/dev/zero of=/tmp/x bs=1M count=64 2>&1 | grep -c 'No space'; wc -c </tmp/x",
        tmp_mb=4,
        user="0:0",  # whom the modes of files would let write anywhere
    )
    assert said.split() == ["root", "etc", "proc", "1", str(4 << 20)]


def test_tmp_bounds_the_number_of_files_too(sandbox: DockerSandbox) -> None:
    said = says(sandbox, "df -i /tmp | tail -n 1 | awk '{print $2}'")
    assert int(said) == 16_384


def test_a_program_in_tmp_can_be_executed_but_not_as_somebody_else(
    sandbox: DockerSandbox,
) -> None:
    said = says(
        sandbox,
        "cp /bin/busybox /tmp; chmod 4755 /tmp/busybox; /tmp/busybox id -u; mount | grep /tmp",
    )
    assert said.startswith("65534\n")
    assert "nosuid" in said
    assert "nodev" in said


def test_a_volume_that_the_image_declares_is_not_on_the_hosts_disk(
    sandbox: DockerSandbox, engine: docker.APIClient
) -> None:
    image = ensure_image(VOLUME_IMAGE, changes=("VOLUME /data", 'CMD ["sh"]'))
    spec = container_spec(
        shell("echo kept >/data/x; cat /data/x; stat -f -c %T /data"), image=image
    )
    handle = sandbox.prepare(spec)
    assert engine.inspect_container(handle.container_id)["Mounts"] == []
    sandbox.start(handle)
    ended = sandbox.wait(handle, NEVER, 20)
    assert ended is not None
    assert ended.output.decode().split() == ["kept", "tmpfs"]


def test_there_is_no_network_but_the_containers_own_loopback(sandbox: DockerSandbox) -> None:
    said = says(sandbox, "ls /sys/class/net; nc -w 1 192.0.2.1 53 2>&1 </dev/null")
    assert said.split()[0] == "lo"
    assert "Network is unreachable" in said


def test_limits_are_set_as_asked_with_no_swap(
    sandbox: DockerSandbox, engine: docker.APIClient
) -> None:
    handle = sandbox.prepare(container_spec(memory_mb=48, cpu=0.5, pids_limit=20))
    host = engine.inspect_container(handle.container_id)["HostConfig"]
    assert (host["Memory"], host["MemorySwap"]) == (48 << 20, 48 << 20)
    assert (host["NanoCpus"], host["PidsLimit"]) == (500_000_000, 20)
    assert (host["NetworkMode"], host["Privileged"], host["Binds"]) == ("none", False, None)


def test_more_cores_than_the_node_has_means_all_of_them(sandbox: DockerSandbox) -> None:
    assert run(sandbox, container_spec(cpu=512.0)).exit_code == 0


def test_a_fork_bomb_ends_at_the_limit_of_processes(sandbox: DockerSandbox) -> None:
    script = "i=0; while [ $i -lt 60 ]; do sleep 30 & i=$((i+1)); echo $i; done 2>&1"
    said = says(sandbox, script, pids_limit=16)
    assert "can't fork" in said
    assert max(int(word) for word in said.split() if word.isdigit()) < 16


def test_the_images_own_health_check_is_not_run(
    sandbox: DockerSandbox, engine: docker.APIClient
) -> None:
    handle = sandbox.prepare(container_spec())
    inspected = engine.inspect_container(handle.container_id)
    assert inspected["Config"]["Healthcheck"] == {"Test": ["NONE"]}


# Processes.


def test_a_child_does_not_outlive_the_program(sandbox: DockerSandbox) -> None:
    marker = f"6{uuid4().int % 10**8}"
    ended = run(sandbox, container_spec(shell(f"setsid sleep {marker} & exit 0")))
    assert ended.exit_code == 0
    assert not _runs_on_the_host(marker)


def test_a_kill_takes_the_whole_process_tree(sandbox: DockerSandbox) -> None:
    marker = f"6{uuid4().int % 10**8}"
    script = f"for i in 1 2 3; do setsid sh -c 'trap \"\" TERM; sleep {marker}' & done; wait"
    handle = sandbox.prepare(container_spec(shell(script)))
    sandbox.start(handle)
    assert eventually(lambda: _runs_on_the_host(marker))
    sandbox.kill(handle)
    assert not _runs_on_the_host(marker)


def test_orphans_are_reaped_while_the_program_runs(sandbox: DockerSandbox) -> None:
    # The program itself never asks after its children.
    handle = sandbox.prepare(container_spec(shell("(sleep 0.2 &); (sleep 0.2 &); exec sleep 600")))
    sandbox.start(handle)
    init = sandbox.init_pid(handle.container_id)
    assert init is not None

    def children() -> list[bytes]:
        pids = Path(f"/proc/{init}/task/{init}/children").read_text().split()
        return [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]

    assert eventually(lambda: children() == [b"sleep\x00600\x00"], within_s=3)


def _runs_on_the_host(marker: str) -> bool:
    needle = marker.encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if needle in path.read_bytes():
                return True
        except OSError:
            continue
    return False


# Output.


def test_endless_short_lines_leave_memory_and_disk_flat(
    sandbox: DockerSandbox, engine: docker.APIClient
) -> None:
    handle = sandbox.prepare(container_spec(("timeout", "3", "yes")))
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sandbox.start(handle)
    ended = sandbox.wait(handle, NEVER, 30)
    assert ended is not None
    assert ended.output_truncated
    assert ended.output == b"y\n" * (16 * 1024 // 2)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 32 * 1024
    assert _log_bytes(engine, handle.container_id) <= 2 * (1 << 20) + 65_536


def test_a_flood_without_a_line_break_does_not_fail_the_run(
    sandbox: DockerSandbox, engine: docker.APIClient
) -> None:
    script = "dd if=/dev/zero bs=1M count=256 2>/dev/null; printf the-end"
    handle = sandbox.prepare(container_spec(shell(script)))
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sandbox.start(handle)
    ended = sandbox.wait(handle, NEVER, 60)
    assert ended is not None
    assert ended.outcome().code is OutcomeCode.SUCCEEDED
    assert ended.output_truncated
    assert len(ended.output) == 16 * 1024
    assert ended.output.endswith(b"\0the-end")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 32 * 1024
    assert _log_bytes(engine, handle.container_id) <= 2 * (1 << 20) + 65_536


def test_the_largest_tail_is_kept_of_lines_of_one_character(instance: str) -> None:
    ensure_demo_image()
    sandbox = DockerSandbox(instance=instance, node="alpha", output_bytes=64 * 1024)
    try:
        ended = run(sandbox, container_spec(shell("yes | head -n 60000")))
    finally:
        sandbox.close()
    assert ended.output == b"y\n" * (64 * 1024 // 2)
    assert ended.output_truncated


def test_output_of_exactly_the_kept_size_is_not_called_truncated(sandbox: DockerSandbox) -> None:
    whole = run(sandbox, container_spec(shell("head -c 16384 /dev/zero")))
    assert (len(whole.output), whole.output_truncated) == (16_384, False)
    more = run(sandbox, container_spec(shell("head -c 16385 /dev/zero")))
    assert (len(more.output), more.output_truncated) == (16_384, True)


def _log_bytes(engine: docker.APIClient, container_id: str) -> int:
    root = Path(engine.info()["DockerRootDir"]) / "containers" / container_id / "local-logs"
    files = list(root.iterdir())
    assert files
    return sum(path.stat().st_size for path in files)


# Images.


def test_an_image_is_never_asked_for_where_pulling_is_off(instance: str) -> None:
    sandbox = DockerSandbox(instance=instance, node="alpha", pull="never")
    try:
        with pytest.raises(ImageNotFound) as missing:
            sandbox.prepare(container_spec(image="127.0.0.1:1/acme/report:3"))
    finally:
        sandbox.close()
    assert missing.value.permanent


def test_a_registry_that_does_not_answer_may_be_tried_again_but_not_for_ever(
    sandbox: DockerSandbox,
) -> None:
    with pytest.raises(ImageNotFound) as missing:
        sandbox.prepare(container_spec(image="127.0.0.1:1/acme/report:3"))
    assert not missing.value.permanent
    assert missing.value.verdict.counts_as_attempt


# The engine as a whole.


def test_the_memory_flag_comes_with_the_exit_every_time(sandbox: DockerSandbox) -> None:
    codes = [run(sandbox, container_spec(("tail", "/dev/zero"))).outcome().code for _ in range(8)]
    assert codes == [OutcomeCode.OUT_OF_MEMORY] * 8


def test_sixteen_waits_cost_next_to_nothing_and_see_every_exit_at_once(
    sandbox: DockerSandbox,
) -> None:
    def started(_: int) -> ContainerHandle:
        handle = sandbox.prepare(container_spec(("sleep", "6")))
        sandbox.start(handle)
        return handle

    with ThreadPoolExecutor(16) as pool:
        handles = list(pool.map(started, range(16)))
        exits = [pool.submit(_seen_late_by_s, sandbox, handle) for handle in handles]
        cpu_before_s, began = time.process_time(), time.monotonic()
        assert eventually(lambda: any(each.done() for each in exits), 30, every_s=0.5)
        cpu_share = (time.process_time() - cpu_before_s) / (time.monotonic() - began)
        late_s = sorted(each.result() for each in exits)
    assert cpu_share < 0.1
    # The engine itself takes some 30 ms to notice one end, longer for sixteen at once.
    assert late_s[len(late_s) // 2] < 1.0


def _seen_late_by_s(sandbox: DockerSandbox, handle: ContainerHandle) -> float:
    ended = sandbox.wait(handle, NEVER, 60)
    seen_at = time.time()
    assert ended is not None
    assert ended.finished_at is not None
    return seen_at - ended.finished_at.timestamp()


def test_an_engine_that_is_not_there_is_unreachable_and_not_a_crash(instance: str) -> None:
    sandbox = DockerSandbox(
        instance=instance, node="alpha", docker_host="unix:///nonexistent/docker.sock"
    )
    assert not sandbox.ping()
    with pytest.raises(EngineUnreachable) as away:
        sandbox.prepare(container_spec())
    assert (away.value.permanent, away.value.verdict.counts_as_attempt) == (False, False)
    sandbox.close()
