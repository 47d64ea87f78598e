"""`python -m scheduler_project.stack up|status|logs|down|reset`: what the Makefile calls."""

import argparse
import os
import shlex
import sys

from rich.table import Table

from scheduler_project.stack.console import console
from scheduler_project.stack.demo import Demo
from scheduler_project.stack.down import reset, take_down
from scheduler_project.stack.env_file import read_env_file
from scheduler_project.stack.errors import StackError
from scheduler_project.stack.layout import Layout, current_layout
from scheduler_project.stack.locks import exclusive
from scheduler_project.stack.logs import follow, last_lines
from scheduler_project.stack.stack import Stack
from scheduler_project.stack.strays import processes_of
from scheduler_project.stack.up import bring_up


def _up(arguments: argparse.Namespace) -> None:
    layout = current_layout()
    with exclusive(current_layout().lock_file):
        stack = Stack(layout)
        try:
            bring_up(stack)
            values = read_env_file(layout.env_file)
            if not arguments.no_demo:
                demo = Demo(values["API_URL"], values["API_KEY"])
                jobs = demo.ensure_jobs()
                try:
                    demo.prove(jobs)
                finally:
                    demo.print_runs(jobs)
        except StackError:
            console.print(last_lines(layout), markup=False, style="dim")
            raise
    _print_addresses(values, layout)


def _print_addresses(values: dict[str, str], layout: Layout) -> None:
    lines = [
        ("API", f"{values['API_URL']}  documentation: {values['API_URL']}/docs"),
        ("  Acme's key", values["API_KEY"]),
        ("  Globex's key", values["API_KEY_2"]),
        ("Admin", f"{values['ADMIN_URL']}  {_login(values, 'ADMIN')}"),
        ("Flower", f"{values['FLOWER_URL']}  {_login(values, 'FLOWER')}"),
    ]
    for name, text in lines:
        # Never wrapped: these are copied.
        console.print(f"{name:<16}{text}", markup=False, soft_wrap=True)
    env_file = shlex.quote(os.path.relpath(layout.env_file))
    # A bare word after the dot would be looked for in PATH.
    source = env_file if "/" in env_file else f"./{env_file}"
    console.print(
        f"For scripts: . {source}   Next: make status, make logs, make down",
        style="dim",
        soft_wrap=True,
    )


def _login(values: dict[str, str], service: str) -> str:
    return f"{values[f'{service}_USER']} / {values[f'{service}_PASSWORD']}"


def _status(_: argparse.Namespace) -> None:
    layout = current_layout()
    stack = Stack(layout)
    if stack.supervisor.pid() is None:
        if left := len(processes_of(layout)):
            raise StackError(f"The supervisor is gone, {left} processes run without it.", "make up")
        raise StackError("The stack is down.", "make up")
    table = Table("program", "state", "", "metrics", box=None)
    metrics = stack.metrics_urls()
    programs = stack.supervisor.statuses()
    for program in programs:
        table.add_row(program.name, program.state, program.detail, metrics.get(program.name, ""))
    console.print(table)
    if layout.env_file.exists():
        _print_addresses(read_env_file(layout.env_file), layout)
    if any(program.state != "RUNNING" for program in programs):
        raise StackError("Not every program runs.", "make logs, make up")


def _logs(arguments: argparse.Namespace) -> None:
    follow(current_layout(), arguments.name)


def _down(_: argparse.Namespace) -> None:
    with exclusive(current_layout().lock_file):
        take_down(Stack(current_layout()))


def _reset(_: argparse.Namespace) -> None:
    with exclusive(current_layout().lock_file):
        reset(Stack(current_layout()))


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scheduler_project.stack", description=__doc__)
    commands = parser.add_subparsers(required=True)
    for name, command, about in (
        ("up", _up, "bring the stack up, prove it with a job"),
        ("status", _status, "what runs, and where"),
        ("logs", _logs, "follow the logs"),
        ("down", _down, "end every process and container of the stack"),
        ("reset", _reset, "down, then delete its data"),
    ):
        subparser = commands.add_parser(name, help=about)
        subparser.set_defaults(command=command)
        if command is _logs:
            subparser.add_argument("name", nargs="?", help="one program; default: all")
        if command is _up:
            subparser.add_argument("--no-demo", action="store_true", help="without demo jobs")
    arguments = parser.parse_args(words)
    try:
        arguments.command(arguments)
    except StackError as error:
        console.print("✗", style="red", end=" ")
        console.print(str(error), markup=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
