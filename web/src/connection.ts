/** What a page has with one agent: the transport, the chats, the record of their streams, and the other tabs. */
import { Chat } from "@ai-sdk/react";
import {
  type ChatOnDataCallback,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
  type UIMessage,
} from "ai";

import { Recorder } from "./recording/recorder.ts";
import { tappedSocket } from "./recording/socket.ts";
import { tapped } from "./recording/tap.ts";
import { signedFetch } from "./session.ts";
import type { Agent } from "./settings.ts";
import { Transport } from "./transport.ts";

/** A chat, and the listener for data that is in no message. */
export interface OpenChat {
  chat: Chat<UIMessage>;
  onData: ChatOnDataCallback<UIMessage>;
}

export class Connection {
  readonly recorder = new Recorder();
  readonly transport: Transport;
  readonly #tabs: BroadcastChannel;
  readonly #chats = new Map<string, OpenChat>();
  readonly #listeners = new Set<(chatId: string) => void>();

  readonly agent: Agent;

  /** `base` is the address of another server than the page's. */
  constructor(agent: Agent, base: typeof fetch = signedFetch) {
    this.agent = agent;
    this.#tabs = new BroadcastChannel(`usechat ${agent.path}`);
    this.#tabs.onmessage = ({ data }: MessageEvent<string>) => this.#tell(data);
    const fetch = tapped(agent.path, this.recorder, base, (turn) => {
      if (turn.kind === "asked") this.changed(turn.chatId);
    });
    const socket = tappedSocket(new URL(agent.path, location.href).href, this.recorder, (turn) => this.changed(turn.chatId));
    this.transport = new Transport(agent, fetch, socket);
  }

  /** The chat with this id, which goes on while another chat is shown. A new one begins with these messages. */
  open(id: string, messages: UIMessage[]): OpenChat {
    const known = this.#chats.get(id);
    if (known) return known;
    const chat = new Chat<UIMessage>({
      id,
      messages,
      transport: this.transport,
      sendAutomaticallyWhen: (asked) =>
        lastAssistantMessageIsCompleteWithToolCalls(asked) || lastAssistantMessageIsCompleteWithApprovalResponses(asked),
      onData: (part) => opened.onData(part),
    });
    const opened: OpenChat = { chat, onData: () => undefined };
    this.#chats.set(id, opened);
    return opened;
  }

  /** Leaves a chat that is gone. */
  forget(id: string): void {
    void this.#chats.get(id)?.chat.stop();
    this.#chats.delete(id);
  }

  /** Calls back with the chat that another tab has changed. The returned function removes the callback. */
  onOthers(callback: (chatId: string) => void): () => void {
    this.#listeners.add(callback);
    return () => this.#listeners.delete(callback);
  }

  /** Tells the other tabs that a chat has changed. */
  changed(chatId: string): void {
    this.#tabs.postMessage(chatId);
  }

  #tell(chatId: string): void {
    this.#listeners.forEach((callback) => callback(chatId));
  }
}
