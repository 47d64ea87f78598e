"""`make chaos`: one campaign, its table, and the command that repeats it. Exit 1 on a violation.

From the environment: SEED (drawn when it is not given), SECONDS (300), CLASS and GUARD. CLASS is
single, double (faults beyond what is promised: told, not judged) or naps (workers sleep past their
leases); GUARD=off leaves out the fence's guard, and then naps are the usual class.
"""

import os
import secrets
import signal
import sys

from tests.chaos.campaign import Options, run_campaign, table
from tests.chaos.plan import FaultClass
from tests.support.services import claim_run_directory, remove_run
from tests.support.template import make_template


def read_options(environ: "os._Environ[str] | dict[str, str]") -> Options:
    """The options that the environment names; raises ValueError for what is none."""
    guard = environ.get("GUARD") or "on"
    if guard not in ("on", "off"):
        raise ValueError(f"GUARD={guard}: on or off")
    # What the fence alone prevents is rare among other faults: without it, workers only sleep.
    usual = FaultClass.SINGLE if guard == "on" else FaultClass.NAPS
    return Options(
        seed=int(environ.get("SEED") or secrets.randbelow(10**6)),
        seconds=float(environ.get("SECONDS") or 300),
        fault_class=FaultClass(environ.get("CLASS") or usual),
        guard=guard == "on",
    )


def main() -> int:
    """Run one campaign; 0 unless a promise was broken."""
    options = read_options(os.environ)
    # Asked to end, everything is ended in order: a `finally` stands around each thing.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    say(f"chaos: {options.command}")
    directory = claim_run_directory()
    try:
        template = make_template(directory / "template", directory)
        result = run_campaign(options, directory / "stack", template)
    finally:
        remove_run(directory)
    say(table(result))
    say(f"again: {options.command}")
    if options.fault_class is FaultClass.DOUBLE:
        say("Double faults are beyond the fault model: reported, not judged.")
        return 0
    return 1 if result.violations else 0


def say(text: str) -> None:
    """Say it now: somebody waits, and may look at a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
