"""How does the state table look as a picture? Mermaid, made from it so that docs can't drift."""

from runs.domain.state import TRANSITIONS, RunStatus

# What the planner and run-now insert: a run to come, or one that is only accounted for.
FIRST = (RunStatus.QUEUED, RunStatus.SKIPPED)


def state_diagram() -> str:
    """The whole diagram as a Mermaid `stateDiagram-v2`, in the table's own order."""
    lines = ["stateDiagram-v2"]
    lines += [f"    [*] --> {status}" for status in FIRST]
    for before, following in TRANSITIONS.items():
        lines += [f"    {before} --> {after}" for after in RunStatus if after in following]
        if not following:
            lines.append(f"    {before} --> [*]")
    return "\n".join(lines)
