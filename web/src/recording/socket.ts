/** The WebSocket of a chat whose streams are recorded. */
import type { UIMessage } from "ai";

import type { Recorder, Turn } from "./recorder.ts";
import { continuedBy } from "./tap.ts";

interface Asked {
  type: string;
  requestId: string;
  id: string;
  messages?: UIMessage[];
  trigger?: string;
  messageId?: string;
}

interface Answered {
  type: string;
  requestId: string;
  chunk?: unknown;
}

/** A WebSocket class that records answers and resumed streams as if they had come from `api`. */
export function tappedSocket(api: string, recorder: Recorder, onAsked: (turn: Turn) => void): typeof WebSocket {
  return class extends WebSocket {
    readonly #turns = new Map<string, Turn>();

    constructor(url: string | URL, protocols?: string | string[]) {
      super(url, protocols);
      this.addEventListener("message", ({ data }: MessageEvent<string>) => this.#heard(data));
      this.addEventListener("close", () => this.#turns.forEach((turn) => end(turn)));
    }

    override send(data: string): void {
      super.send(data);
      const { type, requestId, id, messages, trigger, messageId } = JSON.parse(data) as Asked;
      if (type !== "send" && type !== "resume") return;
      const message = messages?.at(-1);
      const body = type === "send" ? JSON.stringify({ id, message, trigger, messageId }) : "";
      const kind = type === "send" ? "asked" : "resumed";
      const turn = recorder.begin({ chatId: id, kind, request: { url: api, body }, continues: continuedBy(message) }, "WebSocket");
      turn.connections = 1;
      this.#turns.set(requestId, turn);
      if (kind === "asked") onAsked(turn);
    }

    #heard(raw: string): void {
      const { type, requestId, chunk } = JSON.parse(raw) as Answered;
      const turn = this.#turns.get(requestId);
      if (turn === undefined) return;
      recorder.add(turn, raw.length, type === "chunk" ? [{ raw, data: JSON.stringify(chunk) }] : []);
      if (["end", "error", "no-active"].includes(type)) end(turn);
      if (type === "no-active") recorder.forget(turn);
    }
  };

  function end(turn: Turn): void {
    turn.ended = true;
    recorder.changed();
  }
}
