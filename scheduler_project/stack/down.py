"""Take a stack down, and leave nothing of it: no process, no container, no file on tmpfs.

Owns the rule that nothing is trusted to be as `up` left it: a supervisor may have been killed, an
engine may be away, a worker may have asked for a container a moment ago.
"""

import shutil

from scheduler_project.stack.console import step
from scheduler_project.stack.engine import find_engine, release_engine, remove_containers
from scheduler_project.stack.errors import StackError
from scheduler_project.stack.stack import SERVERS, Stack
from scheduler_project.stack.strays import end_all, processes_of


def take_down(stack: Stack) -> None:
    """End every process and container of this stack, whatever state it is in."""
    layout = stack.layout
    with step("Processes") as details:
        if stack.supervisor.pid() is not None:
            stack.supervisor.shutdown(SERVERS)
        left = end_all(processes_of(layout))
        details.append(f"{left} ended that no supervisor knew" if left else "none left")
    with step("Containers") as details:
        details.append(_remove_containers(stack))
    shutil.rmtree(layout.deadlines, ignore_errors=True)
    if layout.supervisor_socket.parent != layout.local:
        shutil.rmtree(layout.supervisor_socket.parent, ignore_errors=True)
    with step("Container engine") as details:
        details.append("stopped" if release_engine(layout.instance) else "left as it is")


def _remove_containers(stack: Stack) -> str:
    try:
        engine = find_engine(stack.environ)
    except StackError as error:
        return f"not looked for: {error}"
    if engine is None:
        return "none, no engine runs"
    return f"none left ({remove_containers(engine, stack.layout.instance)} removed)"


def reset(stack: Stack) -> None:
    """`take_down`, and then forget everything: database, keys, passwords, logs."""
    take_down(stack)
    local = stack.layout.local
    with step("Data") as details:
        for path in local.iterdir():
            if path == stack.layout.lock_file:
                # Held by us, perhaps awaited by another: a new file would be no lock to it.
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        details.append(f"{local} emptied: database, keys, passwords and logs are gone")
