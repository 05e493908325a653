/** Keeps what came over the wire, with the time of each chunk, for the inspector. */
import type { UIMessage } from "ai";

import type { Wire } from "../transport.ts";
import { type SseEvent, SseParser } from "./sse.ts";

export interface RecordedChunk {
  /** Milliseconds since the request was sent. */
  at: number;
  type: string;
  raw: string;
  data: string;
}

export interface Turn {
  key: number;
  chatId: string;
  /** The server's id for it, which a reconnect needs. */
  id: string | undefined;
  kind: "asked" | "resumed";
  transport: Wire;
  request: { url: string; body: string };
  /** The message that the stream continues, if it does. */
  continues: UIMessage | undefined;
  started: number;
  status: number | undefined;
  firstByte: number | undefined;
  bytes: number;
  /** How often it was connected to: more than once if the connection was lost. */
  connections: number;
  chunks: RecordedChunk[];
  /** The types of its chunks. */
  types: Set<string>;
  ended: boolean;
}

const KEPT = 50;
// In bytes.
const SLICE = 8192;

export class Recorder {
  turns: Turn[] = [];
  /** Changes whenever something is recorded. */
  version = 0;
  readonly #listeners = new Set<() => void>();
  #isNotifying = false;
  #made = 0;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  begin(given: Pick<Turn, "chatId" | "kind" | "request" | "continues">, transport: Wire = "SSE"): Turn {
    const turn: Turn = {
      ...given,
      key: this.#made++,
      id: undefined,
      transport,
      started: performance.now(),
      status: undefined,
      firstByte: undefined,
      bytes: 0,
      connections: 0,
      chunks: [],
      types: new Set(),
      ended: false,
    };
    this.turns = [...this.turns.slice(1 - KEPT), turn];
    this.changed();
    return turn;
  }

  forget(turn: Turn): void {
    this.turns = this.turns.filter((other) => other !== turn);
    this.changed();
  }

  /** The turn that a stream continues, by the id of the event after which it continues. */
  interrupted(chatId: string, after: string): Turn | undefined {
    const mark = after.slice(0, after.lastIndexOf("."));
    return this.turns.findLast((turn) => turn.chatId === chatId && mark !== "" && turn.id?.startsWith(mark));
  }

  latest(chatId: string): Turn | undefined {
    return this.turns.findLast((turn) => turn.chatId === chatId);
  }

  /** Notifies the listeners, at most once per frame. */
  changed(): void {
    this.version += 1;
    if (this.#isNotifying) return;
    this.#isNotifying = true;
    setTimeout(() => {
      this.#isNotifying = false;
      this.#listeners.forEach((listener) => listener());
    }, 50);
  }

  /** Passes a body on, and records what it holds. */
  tap(turn: Turn, body: ReadableStream<Uint8Array>): ReadableStream<Uint8Array> {
    const parser = new SseParser();
    turn.ended = false;
    turn.connections += 1;
    const end = () => {
      turn.ended = true;
      this.changed();
    };
    const reader = body.getReader();
    let rest: Uint8Array = new Uint8Array();
    return new ReadableStream({
      pull: async (controller) => {
        try {
          if (rest.length === 0) {
            const { done, value } = await reader.read();
            if (done) {
              end();
              controller.close();
              return;
            }
            this.#take(turn, parser, value);
            rest = value;
          } else {
            // A large piece is read in slices, so that the page can be drawn and used in between.
            await new Promise((resolve) => setTimeout(resolve));
          }
          controller.enqueue(rest.subarray(0, SLICE));
          rest = rest.subarray(SLICE);
        } catch (error) {
          end();
          controller.error(error);
        }
      },
      cancel: (reason) => {
        end();
        return reader.cancel(reason);
      },
    });
  }

  #take(turn: Turn, parser: SseParser, bytes: Uint8Array): void {
    const events = parser.feed(bytes).filter(({ data }) => data !== "" && data !== "[DONE]");
    this.add(turn, bytes.length, events);
  }

  /** Records a chunk with the current time. */
  add(turn: Turn, bytes: number, events: SseEvent[]): void {
    const at = performance.now() - turn.started;
    turn.firstByte ??= at;
    turn.bytes += bytes;
    for (const { raw, data } of events) {
      const type = typeOf(data);
      turn.types.add(type);
      turn.chunks.push({ at, type, raw, data });
    }
    this.changed();
  }
}

function typeOf(data: string): string {
  try {
    const type: unknown = (JSON.parse(data) as { type?: unknown } | null)?.type;
    return typeof type === "string" ? type : "?";
  } catch {
    return "?";
  }
}
