/** One event of a stream: its lines as they came, and its data. */
export interface SseEvent {
  raw: string;
  data: string;
}

const BREAK = /\r\n|\n|\r/;
const END = /(?:\r\n|\n|\r)(?:\r\n|\n|\r)/;

/** Parses a stream piece by piece. Comments are events without data. */
export class SseParser {
  readonly #decoder = new TextDecoder();
  #rest = "";

  feed(bytes: Uint8Array): SseEvent[] {
    this.#rest += this.#decoder.decode(bytes, { stream: true });
    const events: SseEvent[] = [];
    for (let end = END.exec(this.#rest); end !== null; end = END.exec(this.#rest)) {
      events.push(parse(this.#rest.slice(0, end.index)));
      this.#rest = this.#rest.slice(end.index + end[0].length);
    }
    return events;
  }
}

function parse(raw: string): SseEvent {
  const lines = raw.split(BREAK).filter((line) => line.startsWith("data:"));
  return { raw, data: lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n") };
}
