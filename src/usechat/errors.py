"""The errors of usechat.

UsechatError
├── FlowError                  a flow that cannot run, or a run that cannot go on (in usechat.flows)
├── MappingError               an event that a source cannot use; nothing of it was written
├── ProtocolError              a stream broke a rule of the UI message stream
│   ├── LocalProtocolError     our side tried to say something illegal: fix the agent or the mapper
│   └── RemoteProtocolError    the other side sent something that no client could read
└── RequestError               a request that cannot be served; `status` is the HTTP status to answer with
"""

__all__ = ["LocalProtocolError", "MappingError", "ProtocolError", "RemoteProtocolError", "RequestError", "UsechatError"]


class UsechatError(Exception):
    pass


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
    """A bad request. Its text is one plain sentence, written for the person who sent it.

    `retry_after` is the number of seconds after which the same request may succeed.
    """

    def __init__(self, sentence: str, *, status: int = 400, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.retry_after = retry_after
