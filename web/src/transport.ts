/** The chat of one agent on the server: sends, reads on, stops, lists and deletes. */
import { type ChatTransport, DefaultChatTransport, type UIMessage, WebSocketChatTransport, type WebSocketChatTransportInitOptions } from "ai";

import { type ChatEntry, UsechatTransport } from "./react.ts";
import { signature } from "./session.ts";
import type { Agent } from "./settings.ts";

type Socket = NonNullable<WebSocketChatTransportInitOptions<UIMessage>["webSocket"]>;
export type Wire = "SSE" | "WebSocket";

export class Transport implements ChatTransport<UIMessage> {
  /** What carries the next answer. */
  wire: Wire = "SSE";
  readonly #agent: Agent;
  readonly #fetch: typeof fetch;
  readonly #kept: UsechatTransport;
  /** For a server that keeps no messages: sends all of them, and does not reconnect by itself. */
  readonly #sent: DefaultChatTransport<UIMessage>;

  /** Opens a socket when it is first used. */
  readonly #socket: WebSocketChatTransport<UIMessage>;

  constructor(agent: Agent, fetch: typeof globalThis.fetch, webSocket: typeof WebSocket) {
    this.#agent = agent;
    this.#fetch = fetch;
    this.#kept = new UsechatTransport({ api: agent.path, fetch });
    this.#sent = new DefaultChatTransport({ api: agent.path, fetch });
    this.#socket = new WebSocketChatTransport({
      url: agent.socket ?? "",
      // Its type allows shared memory, which is never sent here.
      webSocket: webSocket as Socket,
      headers: signature,
      prepareSendMessagesRequest: ({ messages }) => ({ messages: agent.keeps ? messages.slice(-1) : messages }),
    });
  }

  readonly sendMessages: ChatTransport<UIMessage>["sendMessages"] = (options) => this.#used().sendMessages(options);

  readonly reconnectToStream: ChatTransport<UIMessage>["reconnectToStream"] = (options) => this.#used().reconnectToStream(options);

  #used(): ChatTransport<UIMessage> {
    if (this.wire === "WebSocket") return this.#socket;
    return this.#agent.keeps ? this.#kept : this.#sent;
  }

  /** Stops the agent, which an aborted request would not stop. */
  async halt(chatId: string, turn: string | undefined): Promise<void> {
    if (this.#agent.keeps) return;
    const query = turn === undefined ? "" : `?turn=${encodeURIComponent(turn)}`;
    await this.#fetch(`${this.#agent.path}/${encodeURIComponent(chatId)}/stop${query}`, { method: "POST" });
  }

  async messages(chatId: string): Promise<UIMessage[]> {
    return this.#agent.keeps ? this.#kept.messages(chatId) : [];
  }

  /** The user's chats, or none if the server does not list them. */
  async chats(after?: string): Promise<{ chats: ChatEntry[]; next?: string }> {
    return this.#agent.lists ? this.#kept.chats(after) : { chats: [] };
  }

  remove(chatId: string): Promise<void> {
    return this.#kept.remove(chatId);
  }

  /** Answers a question. False if the answer has to be a message. */
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
