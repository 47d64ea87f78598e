"""Which port a service gets, and what is said when it cannot have the one that was set."""

import socket
from collections.abc import Iterator

import pytest

from scheduler_project.stack.errors import StackError
from scheduler_project.stack.ports import (
    USUAL_PORTS,
    choose_ports,
    first_free,
    is_free,
    ports_set,
)


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which somebody else listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def _nobody(port: int) -> bool:
    return False


def _everything(port: int) -> bool:
    return True


def test_every_service_gets_a_port_of_its_own() -> None:
    ports = choose_ports({}, {}, _nobody)
    assert set(ports) == set(USUAL_PORTS)
    assert len(set(ports.values())) == len(ports)


def test_a_port_that_was_set_is_used() -> None:
    port = first_free(21_000)
    assert choose_ports({"api": port}, {"api": port + 1}, _nobody)["api"] == port


def test_a_set_port_that_is_taken_stops_the_start_and_names_the_variable(taken_port: int) -> None:
    with pytest.raises(StackError, match=f"API_PORT={taken_port}"):
        choose_ports({"api": taken_port}, {}, _nobody)


def test_a_port_on_which_we_listen_ourselves_is_kept(taken_port: int) -> None:
    assert choose_ports({}, {"api": taken_port}, _everything)["api"] == taken_port


def test_a_kept_port_that_somebody_took_is_chosen_anew(taken_port: int) -> None:
    assert choose_ports({}, {"api": taken_port}, _nobody)["api"] != taken_port


def test_a_port_set_for_one_service_is_not_picked_for_another() -> None:
    usual = USUAL_PORTS["api"]
    ports = choose_ports({"redis": usual}, {}, _everything)
    assert ports["redis"] == usual
    assert ports["api"] != usual


def test_a_port_is_free_again_as_soon_as_its_server_is_gone(taken_port: int) -> None:
    assert not is_free(taken_port)
    free = first_free(taken_port)
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", free))
        server.listen()
        with socket.create_connection(("127.0.0.1", free)), server.accept()[0]:
            pass
    assert is_free(free)


def test_ports_are_read_from_their_variables() -> None:
    environ = {"API_PORT": "8001", "REDIS_PORT": "65535", "FLOWER_PORT": "", "PORT": "1"}
    assert ports_set(environ) == {"api": 8001, "redis": 65_535}


@pytest.mark.parametrize("text", ["abc", "0", "65536", "-1", "80.0", "+80", "9" * 30, "٨٠", " 80"])
def test_what_is_no_port_is_refused_with_its_variable(text: str) -> None:
    with pytest.raises(StackError, match="POSTGRES_PORT"):
        ports_set({"POSTGRES_PORT": text})
