"""What a worker shows of itself: its slots."""

from scheduler_project.lib.metrics import show_gauge
from workers.keeper import Keeper


def show_slots(keeper: Keeper) -> None:
    """Show the keeper's slots from now on."""
    slots = keeper.offer.slots
    show_gauge("slots_used", lambda: slots - keeper.unused_slots)
    show_gauge("slots_free", lambda: keeper.unused_slots if keeper.is_accepting else 0)
