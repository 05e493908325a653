"""What the fake model answers: a function of the conversation, the same for every framework and every wire.

A test says what it wants by the words of the user. The tools are those that each app in `live/` has:
`get_weather(city)` gives an object, `boom(reason)` fails, `pay(amount)` waits for the user's approval,
`get_location()` is the page's, `wait()` never returns, and `helper(question)` is a sub-agent where the framework has
one.
"""

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct, field

__all__ = ["Call", "Heard", "Reply", "answer"]


class Call(Struct):
    """A tool call of the model; its id is its number in the conversation."""

    name: str
    input: dict[str, Any]
    id: str = ""


class Heard(Struct):
    """One message of the request, whatever wire it came by."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str = ""
    calls: list[Call] = field(default_factory=list[Call])
    # The call that this is the result of.
    call_id: str = ""
    # The media types of its files.
    files: list[str] = field(default_factory=list[str])


class Reply(Struct):
    """What the model says, in this order: reasoning, text, citation, image, calls. `then` is how its stream goes on."""

    text: Sequence[str] = ()
    reasoning: Sequence[str] = ()
    calls: Sequence[Call] = ()
    # The address and the title of a page.
    cites: tuple[str, str] | None = None
    then: Literal["end", "hang", "break", "fail", "length"] = "end"


def answer(heard: Sequence[Heard]) -> Reply:
    """What the model says next. Ids of calls are unique in the conversation: those that it has are counted."""
    number = sum(len(message.calls) for message in heard)
    reply = _reply(heard)
    for position, call in enumerate(reply.calls, number + 1):
        call.id = f"call_{position}"
    return reply


def _reply(heard: Sequence[Heard]) -> Reply:  # noqa: C901
    last = next((message for message in reversed(heard) if message.role in ("user", "tool")), Heard("user"))
    if last.role == "tool":
        results = [message.text for message in _since_call(heard)]
        return Reply(["The tool said: ", " and ".join(results)], cites=("https://example.org/weather", "Weather"))
    asked = last.text
    match asked.split():
        case ["weather", *cities]:
            calls = [Call("get_weather", {"city": city}) for city in cities]
            return Reply(["Let me ", "look."], ["I need ", "a tool."], calls)
        case ["fail"]:
            return Reply(["I try."], calls=[Call("boom", {"reason": "x"})])
        case ["pay", amount]:
            return Reply(["May I?"], calls=[Call("pay", {"amount": int(amount)})])
        case ["pay", amount, "pay", another]:
            calls = [Call("pay", {"amount": int(amount)}), Call("pay", {"amount": int(another)})]
            return Reply(["May I?"], calls=calls)
        case ["pay", amount, "weather", city]:
            return Reply(["May I?"], calls=[Call("pay", {"amount": int(amount)}), Call("get_weather", {"city": city})])
        case ["locate"]:
            return Reply(["Where are you?"], calls=[Call("get_location", {})])
        case ["wait"]:
            return Reply(["I wait."], calls=[Call("wait", {})])
        case ["help", *words]:
            return Reply(["I ask."], calls=[Call("helper", {"question": " ".join(words)})])
        case ["handoff"]:
            # Some frameworks have one tool for all agents, and their apps say so.
            has_one = any("the tool handoff" in message.text for message in heard if message.role == "system")
            to = {"to_agent": "expert", "reason": "asked"}
            call = Call("handoff", to) if has_one else Call("transfer_to_expert", {})
            return Reply(["I hand over."], calls=[call])
        case ["hang" | "break" | "fail-later" as how]:
            return Reply(["This is ", "the beginning"], then="fail" if how == "fail-later" else how)
        case ["long"]:
            return Reply(["Cut ", "off"], then="length")
        case ["think"]:
            return Reply(["Done."], ["Thinking ", "hard."])
        case _:
            files = f" with {', '.join(last.files)}" if last.files else ""
            return Reply(["You ", "said: ", asked + files])


def _since_call(heard: Sequence[Heard]) -> list[Heard]:
    """The results that the model has not answered yet."""
    results = list[Heard]()
    for message in reversed(heard):
        if message.role != "tool":
            break
        results.insert(0, message)
    return results
