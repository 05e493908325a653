/** The request of a turn as a program. For a server that wants a token, set USECHAT_TOKEN. */
import type { UIMessage } from "ai";

import type { Turn } from "../recording/recorder.ts";
import { token } from "../session.ts";

const quoted = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`;
const isSigned = () => token.get() !== "";

export function asCurl({ request }: Turn): string {
  const signed = isSigned() ? ' -H "authorization: Bearer $USECHAT_TOKEN"' : "";
  return `curl -N ${quoted(request.url)} -H 'content-type: application/json'${signed} --data-raw ${quoted(request.body)}\n`;
}

export function asPython({ request }: Turn): string {
  const signed = isSigned() ? ', "authorization": f"Bearer {os.environ[\'USECHAT_TOKEN\']}"' : "";
  return [
    ...(isSigned() ? ["import os", ""] : []),
    "import httpx",
    "",
    `body = ${JSON.stringify(request.body)}`,
    `headers = {"content-type": "application/json"${signed}}`,
    `with httpx.stream("POST", ${JSON.stringify(request.url)}, content=body.encode(), headers=headers, timeout=None) as answer:`,
    "    for line in answer.iter_lines():",
    "        print(line)",
    "",
  ].join("\n");
}

export function asUseChat({ request }: Turn): string {
  const headers = isSigned() ? ', headers: () => ({ authorization: `Bearer ${prompt("Token")}` })' : "";
  return [
    'import { useChat } from "@ai-sdk/react";',
    'import { DefaultChatTransport } from "ai";',
    "",
    `const transport = new DefaultChatTransport({ api: ${JSON.stringify(request.url)}${headers} });`,
    "",
    "export default function App() {",
    "  const { messages, sendMessage, status } = useChat({ transport });",
    "  return (",
    "    <main>",
    `      <button onClick={() => void sendMessage({ text: ${JSON.stringify(saidIn(request.body))} })}>Send</button>`,
    "      {messages.map((message) => (",
    "        <p key={message.id}>",
    '          {message.role}: {message.parts.map((part) => (part.type === "text" ? part.text : null))}',
    "        </p>",
    "      ))}",
    "      <output>{status}</output>",
    "    </main>",
    "  );",
    "}",
    "",
  ].join("\n");
}

/** The words of the user's message in the body. */
function saidIn(body: string): string {
  const { message, messages } = JSON.parse(body) as { message?: UIMessage; messages?: UIMessage[] };
  const parts = (message ?? messages?.findLast(({ role }) => role === "user"))?.parts ?? [];
  return parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n");
}
