/** The chat of one agent on the server: sends, reads on, stops, lists and deletes. */
import { DefaultChatTransport, type UIMessage } from "ai";

import { SignedOut } from "./session.ts";
import type { Agent } from "./settings.ts";

export interface ChatEntry {
  id: string;
  title: string;
  /** Seconds since 1970. */
  updated: number;
}

export class Transport extends DefaultChatTransport<UIMessage> {
  readonly #agent: Agent;
  readonly #fetch: typeof fetch;

  constructor(agent: Agent, fetch: typeof globalThis.fetch) {
    super({
      api: agent.path,
      fetch,
      prepareSendMessagesRequest: ({ id, messages, trigger, messageId, body }) => ({
        body: { ...body, id, trigger, messageId, ...(agent.keeps ? { message: messages.at(-1) } : { messages }) },
      }),
    });
    this.#agent = agent;
    this.#fetch = fetch;
  }

  /** Stops the agent, and not only the reading of it. */
  async halt(chatId: string, turn: string | undefined): Promise<void> {
    const query = turn === undefined ? "" : `?turn=${encodeURIComponent(turn)}`;
    await this.#fetch(`${this.#chat(chatId)}/stop${query}`, { method: "POST" });
  }

  async messages(chatId: string): Promise<UIMessage[]> {
    if (!this.#agent.keeps) return [];
    const response = await this.#fetch(`${this.#chat(chatId)}/messages`);
    return (await read(response)) as UIMessage[];
  }

  /** The chats of whoever asks; none where the server has no list for them. */
  async chats(): Promise<ChatEntry[]> {
    if (!this.#agent.lists) return [];
    const response = await this.#fetch(`${this.#agent.path}s`);
    return ((await read(response)) as { chats: ChatEntry[] }).chats;
  }

  async remove(chatId: string): Promise<void> {
    const response = await this.#fetch(this.#chat(chatId), { method: "DELETE" });
    if (!response.ok) throw new Error(await response.text());
  }

  /** Answers a question where it was asked; false where the answer has to be a message. */
  async answer(questionId: string, answer: string): Promise<boolean> {
    if (this.#agent.answers === null) return false;
    const response = await this.#fetch(this.#agent.answers, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ questionId, answer }),
    });
    return response.ok;
  }

  #chat(chatId: string): string {
    return `${this.#agent.path}/${encodeURIComponent(chatId)}`;
  }
}

async function read(response: Response): Promise<unknown> {
  if (response.status === 401) throw new SignedOut();
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}
