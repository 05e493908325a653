/** What a page has with one agent: the transport, the record of its streams, and the other tabs. */
import { Recorder } from "./recording/recorder.ts";
import { tappedSocket } from "./recording/socket.ts";
import { tapped } from "./recording/tap.ts";
import { signedFetch } from "./session.ts";
import type { Agent } from "./settings.ts";
import { Transport } from "./transport.ts";

export class Connection {
  readonly recorder = new Recorder();
  readonly transport: Transport;
  readonly #tabs: BroadcastChannel;
  readonly #listeners = new Set<(chatId: string) => void>();

  readonly agent: Agent;

  /** `base` is another server than that of the page. */
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

  /** Calls back with the chat that another tab has changed; the value takes the callback away. */
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
