/** The chat of one agent on the server: sends, reads on, stops, lists and deletes. */
import { type ChatTransport, DefaultChatTransport, type UIMessage } from "ai";

import { type ChatEntry, UsechatTransport } from "./kit.ts";
import type { Agent } from "./settings.ts";

export class Transport implements ChatTransport<UIMessage> {
  readonly #agent: Agent;
  readonly #fetch: typeof fetch;
  readonly #kept: UsechatTransport;
  /** Where the server keeps no messages, all of them are sent, and what is cut is lost. */
  readonly #sent: DefaultChatTransport<UIMessage>;

  constructor(agent: Agent, fetch: typeof globalThis.fetch) {
    this.#agent = agent;
    this.#fetch = fetch;
    this.#kept = new UsechatTransport({ api: agent.path, fetch });
    this.#sent = new DefaultChatTransport({ api: agent.path, fetch });
  }

  readonly sendMessages: ChatTransport<UIMessage>["sendMessages"] = (options) =>
    (this.#agent.keeps ? this.#kept : this.#sent).sendMessages(options);

  readonly reconnectToStream: ChatTransport<UIMessage>["reconnectToStream"] = (options) =>
    (this.#agent.keeps ? this.#kept : this.#sent).reconnectToStream(options);

  /** Stops an agent that an aborted request does not stop. */
  async halt(chatId: string, turn: string | undefined): Promise<void> {
    if (this.#agent.keeps) return;
    const query = turn === undefined ? "" : `?turn=${encodeURIComponent(turn)}`;
    await this.#fetch(`${this.#agent.path}/${encodeURIComponent(chatId)}/stop${query}`, { method: "POST" });
  }

  async messages(chatId: string): Promise<UIMessage[]> {
    return this.#agent.keeps ? this.#kept.messages(chatId) : [];
  }

  /** The chats of whoever asks; none where the server has no list for them. */
  async chats(after?: string): Promise<{ chats: ChatEntry[]; next?: string }> {
    return this.#agent.lists ? this.#kept.chats(after) : { chats: [] };
  }

  remove(chatId: string): Promise<void> {
    return this.#kept.remove(chatId);
  }

  /** Answers a question where it was asked; false where the answer has to be a message. */
  async answer(questionId: string, answer: string | boolean): Promise<boolean> {
    if (this.#agent.answers === null) return false;
    const response = await this.#fetch(this.#agent.answers, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ questionId, answer }),
    });
    return response.ok;
  }
}
