"""The errors of usechat.

UsechatError
├── AGUIError                  the run of an AG-UI agent failed (in usechat.integrations.ag_ui.translator)
├── AgentError                 an agent's turn cannot go on; the text is for its user
├── ClaudeRunError             a run of the Claude Agent SDK failed (in usechat.integrations.claude_agent.agent)
├── DatabaseBusyError          the database is locked, away or too slow; the same call may succeed later
├── DeepAgentError             a run of a DeepAgent failed (in usechat.integrations.deepagent_sdk.agent)
├── DirectoryError             a row that the session directory cannot take (in usechat.gateway.directory)
├── ExpressionError            an expression of a flow is wrong or failed over its values (in usechat.flows.expressions)
├── FlowError                  a flow that cannot run, or a run that cannot go on
│   └── RuntimeBusyError       the runtime is at work for another run
├── MappingError               an event that a source cannot use; nothing of it was written
├── ProtocolError              a stream broke a rule of the UI message stream
│   ├── LocalProtocolError     our side tried to say something illegal: fix the agent or the mapper
│   └── RemoteProtocolError    the other side sent something that no client could read
├── RequestError               a request that cannot be served; `status` is the HTTP status to answer with
│   └── StoreAwayError         the store of turns does not answer (in usechat.stores)
├── ServeError                 a command cannot do its work (in usechat.cli.options)
├── TailChangedError           another process wrote to the chat since it was read; read it again
├── FencedError                a turn was taken over by another owner (in usechat.stores)
├── IdUsedError                an id that counts once was used before (in usechat.stores)
└── TurnRunningError           another turn has the chat (in usechat.stores)
"""

__all__ = [
    "AgentError",
    "DatabaseBusyError",
    "FlowError",
    "LocalProtocolError",
    "MappingError",
    "ProtocolError",
    "RemoteProtocolError",
    "RequestError",
    "RuntimeBusyError",
    "TailChangedError",
    "UsechatError",
]


class UsechatError(Exception):
    pass


class AgentError(UsechatError):
    """An agent raises it to end its turn with an error whose text the user reads."""


class DatabaseBusyError(UsechatError):
    """A call of the database had no result. It may or may not have written."""

    def __init__(self) -> None:
        super().__init__("The database did not answer in time.")


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


class RuntimeBusyError(FlowError):
    """A runtime that is at work for another run; it may be free later."""


class MappingError(UsechatError):
    pass


class ProtocolError(UsechatError):
    """A chunk that breaks a rule.

    `chunk` is the chunk's type on the wire, `rule` the rule's name in the tables, `remedy` what to do instead.
    """

    def __init__(self, problem: str, *, chunk: str, rule: str, remedy: str) -> None:
        super().__init__(problem, chunk, rule, remedy)
        self.problem = problem
        self.chunk = chunk
        self.rule = rule
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem} {self.remedy}"


class LocalProtocolError(ProtocolError):
    pass


class RemoteProtocolError(ProtocolError):
    pass


class RequestError(UsechatError):
    """A bad request. Its text is one plain sentence for the person who sent it.

    `retry_after` is the number of seconds after which the same request may succeed.
    """

    def __init__(self, sentence: str, *, status: int = 400, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.retry_after = retry_after


class TailChangedError(UsechatError):
    """The chat has changed since it was read, so nothing was written."""

    def __init__(self) -> None:
        super().__init__("Another process wrote to the chat since it was read. Read it again.")
