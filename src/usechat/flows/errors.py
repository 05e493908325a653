"""What is wrong with a flow or with its run."""

from usechat.errors import UsechatError

__all__ = ["FlowError"]


class FlowError(UsechatError):
    """A flow that cannot be run as it is, or a run that cannot go on.

    `path` is the place in the flow (`nodes[0].type`); `file` and `line` say where that stands, if the flow was read
    from a file; `remedy` says what to do.
    """

    def __init__(
        self, problem: str, *, remedy: str = "", path: str = "", file: str | None = None, line: int | None = None
    ) -> None:
        super().__init__(problem, remedy, path, file, line)
        self.problem = problem
        self.remedy = remedy
        self.path = path
        self.file = file
        self.line = line

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file is not None else self.path
        words = f"{self.problem} {self.remedy}".strip()
        return f"{place}: {words}" if place else words
