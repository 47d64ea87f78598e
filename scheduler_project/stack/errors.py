"""The one error of the stack: a sentence for a person, with what to do about it."""


class StackError(Exception):
    """A step that cannot go on. `remedy` is a command or an action that mends it."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n  → {self.remedy}" if self.remedy else message
