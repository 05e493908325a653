/** Plays a recording as if a server sent it. */
import type { RecordedEvent, Recording } from "./file.ts";

export type Speed = 1 | 4 | "step";

// The longest delay of a timer, and the most chunks between two timers.
const LONGEST = 2 ** 31 - 1;
const AT_ONCE = 50;

export class Player {
  readonly recording: Recording;
  #speed: Speed = 1;
  #wake: (() => void) | undefined;

  constructor(recording: Recording) {
    this.recording = recording;
  }

  /** Changes the speed, also of the current wait. */
  set speed(speed: Speed) {
    this.#speed = speed;
    if (speed !== "step") this.#wake?.();
  }

  /** Plays the next chunk. */
  step(): void {
    this.#speed = "step";
    this.#wake?.();
  }

  /** A `fetch` that answers every request with the recording. */
  readonly fetch: typeof fetch = (_input, init) => {
    const isStop = init?.method === "POST" && init.body === undefined;
    if (isStop) return Promise.resolve(new Response(null, { status: 204 }));
    const encoder = new TextEncoder();
    const { events } = this.recording;
    let next = 0;
    // How late the last chunk was. The chunks after it catch up.
    let late = 0;
    const gap = () => (events[next]?.at ?? Infinity) - (events[next - 1]?.at ?? 0);
    const body = new ReadableStream<Uint8Array>({
      pull: async (controller) => {
        if (next >= events.length) return controller.close();
        late = await this.#wait(gap(), late);
        if (init?.signal?.aborted) return controller.close();
        const due: RecordedEvent[] = events.slice(next, ++next);
        while (this.#speed !== "step" && due.length < AT_ONCE && gap() / this.#speed <= late) {
          late -= gap() / this.#speed;
          due.push(...events.slice(next, ++next));
        }
        return controller.enqueue(encoder.encode(due.map(({ data }) => `data: ${data}\n\n`).join("")));
      },
    });
    return Promise.resolve(new Response(body, { headers: { "content-type": "text/event-stream" } }));
  };

  /** Waits for a time, less the delay to catch up with. Returns how late it is then. */
  async #wait(ms: number, late: number): Promise<number> {
    const wanted = this.#speed === "step" ? 0 : ms / this.#speed - late;
    const began = performance.now();
    let isWoken = false;
    await new Promise<void>((resolve) => {
      const timer = this.#speed === "step" ? undefined : setTimeout(resolve, Math.min(Math.max(0, wanted), LONGEST));
      this.#wake = () => {
        isWoken = true;
        clearTimeout(timer);
        resolve();
      };
    });
    this.#wake = undefined;
    return isWoken ? 0 : Math.max(0, performance.now() - began - wanted);
  }
}
