"""The components that `usechat react --parts` prints: their types, and what they show in an app of somebody else's."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from chromium import HERE, Chromium, Tab
from promises import V5, V6, V7
from support.loopback import free_port
from usechat.integrations.deepagent_sdk.events import SIDE_EVENTS
from usechat.integrations.deepagent_sdk.typescript import deep_agent_types

REACT: Final = HERE.parent / "src" / "usechat" / "react" / "parts.tsx"
CLIENTS: Final = HERE.parent / "conformance" / "node_modules"
TSC: Final = HERE / "node_modules" / ".bin" / "tsc"
STRICTEST: Final = {
    "exactOptionalPropertyTypes": True,
    "isolatedModules": True,
    "noImplicitReturns": True,
    "noPropertyAccessFromIndexSignature": True,
    "noUncheckedIndexedAccess": True,
    "target": "es2021",
    "lib": ["es2021", "dom"],
}
APP: Final = """\
import type { UIMessage } from "ai";
import { useState } from "react";
import { type AnswerQuestion, DataPart, PartStyles, type UsechatDataParts } from "./parts";

type Message = UIMessage<unknown, UsechatDataParts>;

export const flowName = (message: Message): string | undefined =>
  message.parts.map((part) => (part.type === "data-flow-status" ? part.data.flowName : "")).join();
export const todo = (message: Message): unknown =>
  // @ts-expect-error there is no such field
  message.parts.map((part) => (part.type === "data-todos-changed" ? part.data.todo : ""));

export function Shown({ message, answer }: { message: Message; answer: AnswerQuestion }) {
  return message.parts.map((part, index) =>
    part.type === "text" ? part.text : <DataPart key={index} part={part} live={false} answer={answer} />,
  );
}

const message = JSON.parse(document.getElementById("message")!.textContent!) as Message;

export default function App() {
  const [said, setSaid] = useState("");
  return (
    <main>
      <PartStyles />
      <Shown message={message} answer={(id, value) => setSaid(`${id}: ${JSON.stringify(value)}`)} />
      <output>{said}</output>
    </main>
  );
}
"""
# The types of `usechat types deep-agent` do what they are for.
TYPED: Final = """\
import type { UIMessage } from "ai";
import type { DeepAgentDataParts, DeepAgentMetadata } from "./deep-agent";

type Message = UIMessage<DeepAgentMetadata, DeepAgentDataParts>;

export function told(message: Message): (string | number | undefined)[] {
  return message.parts.map((part) => {
    switch (part.type) {
      case "data-todos-changed":
        return part.data.todos.filter((todo) => todo.status === "in_progress").map((todo) => todo.content).join();
      case "data-execute-finish":
        return part.data.exitCode ?? undefined;
      case "data-subagent-start":
        return `${part.data.name} ${part.data.toolCallId}`;
      case "data-batch":
        return part.data.events.map((event) => (event.type === "file-read" ? event.lines : 0)).length;
      case "data-subagent":
        return part.data.tools.filter((call) => call.state === "running").map((call) => call.toolName).join();
      case "data-interrupt":
        return part.data.id;
      case "data-ls":
        // @ts-expect-error there is no such field
        return part.data.lines;
      case "text":
        return part.text;
      default:
        return message.metadata?.usage?.totalTokens;
    }
  });
}

// @ts-expect-error there is no such part
export const wrong: Message["parts"][number] = { type: "data-rm", data: {} };
export const id: Message["parts"][number] = { type: "data-checkpoint-saved", data: { threadId: "t", step: 1 } };
// @ts-expect-error a field is missing
export const lacking: Message["parts"][number] = { type: "data-checkpoint-saved", data: { threadId: "t" } };
"""
# An event of each kind, with the fields of all.
EVENT: Final = {
    "path": "log.md",
    "pattern": "*.md",
    "content": "# Log",
    "occurrences": 1,
    "lines": 2,
    "count": 3,
    "command": "make",
    "exitCode": 0,
    "query": "tides",
    "resultCount": 4,
    "url": "https://tides.example",
    "method": "GET",
    "statusCode": 200,
    "success": True,
    "name": "pilot",
    "task": "look out",
    "result": "all clear",
    "stepIndex": 1,
    "toolCalls": [{"toolName": "look"}],
    "threadId": "t",
    "step": 5,
    "todos": [{"content": "Set sail", "status": "in_progress"}, {"content": "Eat", "status": "completed"}],
}
QUESTION: Final = {"state": "open", "text": "Which boat?"}
PARTS: Final[list[tuple[str, Any]]] = [
    *((f"data-{name}", EVENT) for name in SIDE_EVENTS),
    ("data-batch", {"events": [{"type": "ls", **EVENT}, {"type": "execute-start", **EVENT}]}),
    ("data-agent-status", {"status": "streaming"}),
    ("data-agent-error", {"nodeId": "pilot", "message": "Aground."}),
    ("data-flow-status", {"status": "complete", "flowName": "Harbour"}),
    ("data-flow-event", {"type": "edge:fire", "from": "pilot", "to": "crew"}),
    ("data-flow-event", {"type": "state:patch", "patch": {}}),
    ("data-node", {"nodeId": "pilot", "status": "skipped", "reason": "no wind"}),
    # As a session asks: its actions are the options, too.
    ("data-question", QUESTION | {"questionId": "1", "options": ["Red"], "actions": [{"id": "r", "label": "Red"}]}),
    ("data-question", QUESTION | {"questionId": "2", "text": "May I?"}),
    ("data-question", {"questionId": "3", "state": "answered", "text": "When?", "answer": "Now"}),
    ("data-interrupt", {"id": "1", "value": "Go on?"}),
    (
        "data-subagent",
        {"id": "1", "name": "crew", "status": "done", "text": "Aye.", "tools": [{"toolName": "row", "state": "done"}]},
    ),
    ("data-weather", {"wind": "west"}),
    *((f"data-{name}", None) for name in ("todos", "node", "question", "file-written", "batch", "toString")),
    ("data-todos", {"todos": [None, {"content": {}, "status": "toString"}]}),
    ("text", None),
]
SHOWN: Final = """\
To do
1 of 2
Set sail
in progress
Eat
done
Writes log.md
Wrote log.md
Edited log.md in 1 place
Read log.md, 2 lines
Listed log.md, 3 entries
Looked for *.md, 3 files
Searched for *.md, 3 matches
Runs make
Ran make, exit code 0
Searches the web for “tides”
Searched the web for “tides”, 4 results
GET https://tides.example
https://tides.example answered 200
Fetches https://tides.example
Fetched https://tides.example
Asks pilot: look out
pilot is done
Step 1 of the sub-agent, 1 call
Saved a checkpoint after step 5
Went on from the checkpoint of step 5
Listed log.md, 3 entries
Runs make
pilot: Aground.
Harbour: complete
pilot → crew
state:patch
pilot skipped, no wind
Which boat?
Red
May I?
Yes
No
Answer
When?
Answered: Now
Go on?
crew done, row done
weather
To do
0 of 0
Wrote
toString
To do
0 of 2
toString"""


def app(root: Path, client: str) -> Path:
    """An app with the components, whose types are those of a release of the client."""
    shutil.copytree(HERE / "app", root)
    shutil.copy(REACT, root / "src" / "parts.tsx")
    (root / "src" / "App.tsx").write_text(APP, encoding="utf-8")
    (root / "node_modules").symlink_to(HERE / "node_modules", target_is_directory=True)
    config = json.loads((root / "tsconfig.json").read_text("utf-8"))
    config["compilerOptions"] |= STRICTEST | {"paths": {"ai": [str(CLIENTS / f"ai-{client}")]}}
    (root / "tsconfig.json").write_text(json.dumps(config), encoding="utf-8")
    return root


@pytest.mark.parametrize("client", [V5, V6, V7])
def test_they_have_the_types_of_each_client_as_those_of_deep_agents_have(tmp_path: Path, client: str) -> None:
    root = app(tmp_path / "app", client)
    (root / "src" / "deep-agent.ts").write_text(deep_agent_types(), encoding="utf-8")
    (root / "src" / "page.ts").write_text(TYPED, encoding="utf-8")
    checked = subprocess.run([TSC, "--project", root], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_an_app_shows_each_part(chromium: Chromium, tmp_path: Path) -> None:
    root, port = app(tmp_path / "app", V7), free_port()
    parts = [{"type": kind, "text": "", "data": data} for kind, data in PARTS]
    message = json.dumps({"id": "1", "role": "assistant", "parts": parts})
    page = root / "index.html"
    style = "<style>:root { color-scheme: light dark }</style>"
    element = f'{style}<script id="message" type="application/json">{message}</script></head>'
    page.write_text(page.read_text("utf-8").replace("</head>", element), encoding="utf-8")
    chromium.serve(root, port)
    with chromium.opened(f"http://localhost:{port}") as tab:
        assert [line for line in tab.wait_for("main").splitlines() if line] == SHOWN.splitlines()

        tab.click('role=button[name="weather"]')
        assert tab.wait_for('role=group[name="weather"]') == '{\n  "wind": "west"\n}'
        answered(tab, 'role=button[name="Red"]', '1: "Red"')
        answered(tab, 'role=button[name="No"]', "2: false")
        for scheme in ("light", "dark"):
            tab.look_like(scheme, 390)
            assert tab.run("document.documentElement.scrollWidth") == 390
            tab.screenshot(f"parts-{scheme}")
        assert tab.look().problems == []


def answered(tab: Tab, choice: str, said: str) -> None:
    tab.click(choice)
    assert tab.wait_for("output") == said
    tab.wait_for_hidden(choice)
