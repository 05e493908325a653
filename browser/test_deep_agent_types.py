"""The types of `usechat types deep-agent` do what they are for, with the `UIMessage` of each major of the client."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from chromium import HERE
from promises import V5, V6, V7
from usechat.sources.deep_agent_typescript import deep_agent_types

CLIENTS: Final = HERE.parent / "conformance" / "node_modules"

PROGRAM: Final = """\
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
      case "data-subgraph":
        return part.data.tools?.filter((call) => call.state === "running").map((call) => call.toolName).join();
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


@pytest.mark.parametrize("client", [V5, V6, V7])
def test_a_page_that_uses_the_types_is_checked_by_them(tmp_path: Path, client: str) -> None:
    root = Path(shutil.copytree(HERE / "app", tmp_path / "app"))
    shutil.rmtree(root / "src")
    (root / "src").mkdir()
    (root / "src" / "deep-agent.ts").write_text(deep_agent_types(), encoding="utf-8")
    (root / "src" / "page.ts").write_text(PROGRAM, encoding="utf-8")
    config = json.loads((root / "tsconfig.json").read_text("utf-8"))
    config["compilerOptions"]["paths"] = {"ai": [str(CLIENTS / f"ai-{client}")]}
    (root / "tsconfig.json").write_text(json.dumps(config), encoding="utf-8")
    compiler = HERE / "node_modules" / ".bin" / "tsc"
    checked = subprocess.run([compiler, "--project", root], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout.splitlines()) == (0, [])
