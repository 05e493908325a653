"""A SessionAgent of Agent Ops for development: the contract of its client socket, scripted by what is prompted.

It shares no code with what is tested against it, so that the two are two readings of one contract.
"""

from usechat.session_agent.agent import Received, Script, SessionAgent, read_script
from usechat.session_agent.session import Session, SessionSettings, Turn, TurnPlay, Vocabulary
from usechat.session_agent.sockets import FAULTS, Fault, FaultName, Socket, read_fault

__all__ = [
    "FAULTS",
    "Fault",
    "FaultName",
    "Received",
    "Script",
    "Session",
    "SessionAgent",
    "SessionSettings",
    "Socket",
    "Turn",
    "TurnPlay",
    "Vocabulary",
    "read_fault",
    "read_script",
]
