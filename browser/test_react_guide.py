"""What the guide for React tells: each snippet has types, and the page and the route handler work."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import pytest

from chromium import HERE, Chromium, Tab
from support.hang import HANG_SECONDS
from support.loopback import free_port, message, serving
from usechat import Chat, Data, ToolCall, ToolResult, create_app
from usechat.cli.replay import replay_app
from usechat.server.auth import BearerTokens
from usechat.server.responses import StreamLimits
from usechat.testing import RecordedChunk, Recording
from wire import wire

ROOT: Final = HERE.parent
REACT: Final = ROOT / "src" / "usechat" / "react" / "usechat.ts"
GUIDE: Final = (ROOT / "docs" / "guides" / "react.md").read_text(encoding="utf-8")
SNIPPETS: Final = dict(re.findall(r"```tsx?\n// (\S+)\n(.*?)```", GUIDE, re.DOTALL))
TSC: Final = HERE / "node_modules" / ".bin" / "tsc"
TOKEN: Final = "a-token-that-no-browser-sees"  # noqa: S105

# What the snippets use of packages that are not installed here, as those packages have it.
STUBS: Final = """
declare const process: { env: Record<string, string | undefined> };
declare module "next" {
  type Rewrite = { source: string; destination: string };
  export interface NextConfig { rewrites?: () => Promise<Rewrite[]> }
}
declare module "@assistant-ui/react" {
  import type { FC, ReactNode } from "react";
  export type AssistantRuntime = { thread: unknown };
  export const AssistantRuntimeProvider: FC<{ runtime: AssistantRuntime; children?: ReactNode }>;
  export const ThreadPrimitive: { Root: FC<{ children?: ReactNode }> };
}
declare module "@assistant-ui/react-ai-sdk" {
  import type { ChatInit, UIMessage } from "ai";
  import type { AssistantRuntime } from "@assistant-ui/react";
  export const useChatRuntime: <M extends UIMessage = UIMessage>(options?: ChatInit<M>) => AssistantRuntime;
}
declare module "@/components/ai-elements/confirmation" {
  import type { ToolUIPart } from "ai";
  import type { ComponentProps, FC, ReactNode } from "react";
  type Approval = { id: string; approved?: boolean; reason?: string };
  type Props = ComponentProps<"div"> & { approval?: Approval; state: ToolUIPart["state"] };
  export const Confirmation: FC<Props>;
  export const ConfirmationRequest: FC<{ children?: ReactNode }>;
  export const ConfirmationActions: FC<ComponentProps<"div">>;
  export const ConfirmationAction: FC<ComponentProps<"button">>;
}
declare module "@/components/ai-elements/conversation" {
  import type { ComponentProps, FC } from "react";
  export const Conversation: FC<ComponentProps<"div">>;
  export const ConversationContent: FC<ComponentProps<"div">>;
}
declare module "@/components/ai-elements/message" {
  import type { UIMessage } from "ai";
  import type { ComponentProps, FC } from "react";
  export const Message: FC<ComponentProps<"div"> & { from: UIMessage["role"] }>;
  export const MessageContent: FC<ComponentProps<"div">>;
  export const MessageResponse: FC<{ children?: string }>;
}
"""


def write_snippets(root: Path) -> None:
    for name, code in SNIPPETS.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code, encoding="utf-8")
        for printed in REACT.parent.iterdir():
            if f'"./{printed.stem}"' in code:
                shutil.copy(printed, file.parent)


def compile_typescript(*arguments: str | Path) -> None:
    checked = subprocess.run([TSC, *arguments], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_each_snippet_has_types(tmp_path: Path) -> None:
    assert len(SNIPPETS) == GUIDE.count("```ts\n") + GUIDE.count("```tsx\n") > 10
    app = json.loads((HERE / "app" / "tsconfig.json").read_text(encoding="utf-8"))
    app["compilerOptions"]["noUncheckedIndexedAccess"] = True
    (tmp_path / "tsconfig.json").write_text(json.dumps({**app, "include": ["**/*"]}), encoding="utf-8")
    (tmp_path / "stubs.d.ts").write_text(STUBS, encoding="utf-8")
    (tmp_path / "node_modules").symlink_to(HERE / "node_modules", target_is_directory=True)
    write_snippets(tmp_path)
    compile_typescript("--project", tmp_path, "--moduleDetection", "auto")


async def count(chat: Chat) -> AsyncGenerator[str, None]:
    """Counts for longer than a test waits."""
    for number in range(100_000):
        yield f"[{number}] "
        await asyncio.sleep(0.005)


def counted(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\[(\d+)\]", text)]


def until_stopped(tab: Tab) -> None:
    """Wait until the page has posted one stop, for one turn, and has its answer."""
    deadline = time.monotonic() + HANG_SECONDS
    while not (
        stops := [address for method, address, _ in tab.look().requests if method == "POST" and "/stop" in address]
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert [bool(re.search(r"/stop\?turn=[0-9a-f]{32}$", address)) for address in stops] == [True]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    root = Path(shutil.copytree(HERE / "app", tmp_path / "app"))
    (root / "node_modules").symlink_to(HERE / "node_modules", target_is_directory=True)
    for printed in REACT.parent.iterdir():
        shutil.copy(printed, root / "src")
    return root


def test_the_page_does_not_see_a_drop_goes_on_after_a_reload_and_stops(chromium: Chromium, app: Path) -> None:
    page = free_port()
    with serving(create_app(count, cors=[f"http://localhost:{page}"])) as server, wire(server) as (url, connection):
        code = SNIPPETS["src/App.tsx"].replace('"/api/chat"', f'"{url}/api/chat"')
        (app / "src" / "App.tsx").write_text(code, encoding="utf-8")
        chromium.serve(app, page)
        tab = chromium.open(f"http://localhost:{page}/?chat=1")
        tab.fill("input", "Count")
        tab.press("input", "Enter")
        tab.wait_for("text=[10]")
        connection.cut()
        shown = counted(tab.wait_for("main"))[-1]
        tab.wait_for(f"text=[{shown + 50}]")
        tab.wait_for("output:text-is('streaming')")

        tab.goto(f"http://localhost:{page}/?chat=1")
        tab.wait_for(f"text=[{shown + 100}]")
        tab.click("text=Stop")
        tab.wait_for("output:text-is('ready')")
        numbers = counted(tab.wait_for("main"))
        assert numbers == [*range(len(numbers))]
        chat = f"{server}/api/chat/1"
        until_stopped(tab)
        assert httpx.get(f"{chat}/stream", timeout=HANG_SECONDS).status_code == 204
        kept = httpx.get(f"{chat}/messages", timeout=HANG_SECONDS).json()
        assert counted(kept[-1]["parts"][-1]["text"])[: len(numbers)] == numbers
        # Chromium itself says in the console that a connection was lost.
        assert [problem for problem in tab.look().problems if "net::ERR_" not in problem] == []
        tab.close()


def test_the_page_goes_on_behind_the_proxy_of_vite_which_hides_that_a_connection_was_lost(
    chromium: Chromium, app: Path
) -> None:
    page = free_port()
    with (
        serving(create_app(count, stream=StreamLimits(keep_alive=0.2))) as server,
        wire(server) as (url, connection),
    ):
        (app / "src" / "App.tsx").write_text(SNIPPETS["src/App.tsx"], encoding="utf-8")
        assert 'proxy: { "/api": { target: "http://127.0.0.1:8000" } }' in SNIPPETS["vite.config.ts"]
        chromium.serve(app, page, {"/api": {"target": url}})
        with chromium.opened(f"http://localhost:{page}/?chat=1") as tab:
            tab.fill("input", "Count")
            tab.press("input", "Enter")
            tab.wait_for("text=[10]")
            connection.cut()
            shown = counted(tab.wait_for("main"))[-1]
            tab.wait_for(f"text=[{shown + 50}]")
            tab.wait_for("output:text-is('streaming')")
            tab.click("text=Stop")
            until_stopped(tab)
            numbers = counted(tab.wait_for("main"))
            assert numbers == [*range(len(numbers))]
            assert [problem for problem in tab.look().problems if "net::ERR_" not in problem] == []


async def asks(chat: Chat) -> AsyncGenerator[Any, None]:
    """Does what the pages of the guide ask for."""
    if chat.text == "Make a plan":
        yield Data("data-todos", {"todos": [{"content": "Set sail", "status": "pending"}]})
        question = {"questionId": "q", "state": "open", "text": "Which boat?", "options": ["The blue one"]}
        yield Data("data-question", question)
    elif chat.text == "The blue one":
        yield "We sail."
    elif chat.tool_results:
        yield f"There: {chat.tool_results[0].output}"
    elif chat.text == "What time is it?":
        yield ToolCall("time", "timezone", {})
    elif chat.approvals:
        yield ToolResult(chat.approvals[0].call_id, chat.approvals[0].approved)
    else:
        yield ToolCall("drop", "delete", {"age": 9})
        chat.write.approval_request("drop")


def test_approvals_browser_tools_data_parts_and_the_list_work(chromium: Chromium, app: Path) -> None:
    page = free_port()
    pages = {"Approvals": "Approvals", "BrowserTools": "Page", "Messages": "Page", "Chats": "Chats"}
    with serving(create_app(asks, lists_all=True, cors=[f"http://localhost:{page}"])) as server:
        for name in pages:
            code = SNIPPETS[f"src/{name}.tsx"].replace('"/api/chat"', f'"{server}/api/chat"')
            (app / "src" / f"{name}.tsx").write_text(code, encoding="utf-8")
        imports = [f'import {{ {part} as {name} }} from "./{name}";' for name, part in pages.items()]
        shown = [f"{{place === '{name}' && <{name} {'' if name == 'Chats' else f'id={name!r}'} />}}" for name in pages]
        program = "const place = location.search.slice(1);\nexport default () => <>{}</>;\n".format("".join(shown))
        (app / "src" / "App.tsx").write_text("\n".join([*imports, program]), encoding="utf-8")
        chromium.serve(app, page)
        with chromium.opened(f"http://localhost:{page}/?Approvals") as tab:
            tab.click("text=Delete the old files")
            tab.click("text=Approve")
            tab.wait_for('text=delete {"age":9}: output-available')
            tab.goto(f"http://localhost:{page}/?BrowserTools")
            tab.click("text=What time is it?")
            tab.wait_for(f"text=There: {tab.run('Intl.DateTimeFormat().resolvedOptions().timeZone')}")
            tab.goto(f"http://localhost:{page}/?Messages")
            tab.click("text=Make a plan")
            tab.wait_for("text=0 of 1")
            tab.click("text=The blue one")
            tab.wait_for("text=We sail.")
            tab.goto(f"http://localhost:{page}/?Chats")
            tab.click("li:has-text('Make a plan') >> button")
            tab.wait_for_hidden("text=Make a plan")
            assert tab.wait_for("#root").count("Delete") == 3
            assert tab.look().problems == []


def test_a_recording_is_a_server_for_the_page(chromium: Chromium, app: Path) -> None:
    page = free_port()
    sent = [
        {"type": "start", "messageId": "1"},
        {"type": "text-start", "id": "1"},
        {"type": "text-delta", "id": "1", "delta": "Good morning"},
        {"type": "text-end", "id": "1"},
        {"type": "finish"},
    ]
    recording = Recording(None, None, [RecordedChunk(0, msgspec.Raw(json.dumps(chunk).encode())) for chunk in sent])
    with serving(replay_app(recording, "/api/chat", speed=0)) as server:
        code = SNIPPETS["src/App.tsx"].replace('"/api/chat"', f'"{server}/api/chat"')
        (app / "src" / "App.tsx").write_text(code, encoding="utf-8")
        chromium.serve(app, page)
        with chromium.opened(f"http://localhost:{page}") as tab:
            for number in range(2):
                tab.fill("input", "Hello")
                tab.press("input", "Enter")
                tab.wait_for(f"text=assistant: Good morning >> nth={number}")
                tab.wait_for("output:text-is('ready')")
            assert tab.look().problems == []


async def answer(chat: Chat) -> AsyncGenerator[str, None]:
    yield f"Hello, {chat.user}."


def test_the_route_handler_passes_everything_on(tmp_path: Path) -> None:
    write_snippets(tmp_path)
    source = tmp_path / "app" / "api" / "chat" / "[[...path]]" / "route.ts"
    compile_typescript(source, "--noCheck", "--ignoreConfig", "--target", "es2022", "--module", "esnext")
    route = source.with_suffix(".js").rename(source.with_suffix(".mjs")).as_uri()
    script = f"""
const {{ GET, POST, DELETE }} = await import({json.dumps(route)});
const headers = {{ "content-type": "application/json" }};
const asked = await POST(new Request("http://app.test/api/chat", {{ method: "POST", headers, body: process.argv[1] }}));
const text = await asked.text();
const kept = await (await GET(new Request("http://app.test/api/chat/1/messages"))).json();
const turn = asked.headers.get("x-usechat-turn");
const stop = await POST(new Request(`http://app.test/api/chat/1/stop?turn=${{turn}}`, {{ method: "POST" }}));
const rest = await GET(new Request(`http://app.test/api/chat/1/stream?after=${{turn}}.0`));
const removed = await DELETE(new Request("http://app.test/api/chat/1", {{ method: "DELETE" }}));
const same = (await rest.text()) === text;
console.log(JSON.stringify([asked.status, kept.at(-1).parts.at(-1).text, stop.status, same, removed.status]));
"""
    with serving(create_app(answer, authenticate=BearerTokens({TOKEN: "ada"}))) as server:
        done = subprocess.run(
            ["node", "--input-type=module", "-e", script, json.dumps(message("Hello", "1"))],  # noqa: S607
            env={**os.environ, "CHAT_SERVER": server, "CHAT_TOKEN": TOKEN},
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG_SECONDS,
        )
    assert (json.loads(done.stdout or "null"), done.stderr) == ([200, "Hello, ada.", 204, True, 204], "")
