/** The request of a turn in other words. */
import type { Turn } from "../recording/recorder.ts";

const quoted = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`;

export function asCurl({ request }: Turn): string {
  return `curl -N ${quoted(request.url)} -H 'content-type: application/json' -d ${quoted(request.body)}`;
}

export function asPython({ request }: Turn): string {
  return [
    "import httpx",
    "",
    `body = ${JSON.stringify(request.body)}`,
    'headers = {"content-type": "application/json"}',
    `with httpx.stream("POST", ${JSON.stringify(request.url)}, content=body.encode(), headers=headers, timeout=None) as answer:`,
    "    for line in answer.iter_lines():",
    "        print(line)",
    "",
  ].join("\n");
}

export function asUseChat({ request }: Turn): string {
  return [
    'import { useChat } from "@ai-sdk/react";',
    'import { DefaultChatTransport } from "ai";',
    "",
    `const transport = new DefaultChatTransport({ api: ${JSON.stringify(request.url)} });`,
    "const { messages, sendMessage, stop, status } = useChat({ transport });",
    "",
  ].join("\n");
}
