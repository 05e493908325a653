/** Plays a recording as if a server sent it. */
import type { RecordedEvent, Recording } from "./file.ts";

export type Speed = 1 | 4 | "step";

// The longest time of a timer, and the most chunks that go between two of them.
const LONGEST = 2 ** 31 - 1;
const AT_ONCE = 50;

export class Player {
  readonly recording: Recording;
  #speed: Speed = 1;
  #wake: (() => void) | undefined;

  constructor(recording: Recording) {
    this.recording = recording;
  }

  /** Changes the speed, also of what is waited for. */
  set speed(speed: Speed) {
    this.#speed = speed;
    if (speed !== "step") this.#wake?.();
  }

  /** Lets the next chunk go. */
  step(): void {
    this.#speed = "step";
    this.#wake?.();
  }

  /** A `fetch` that answers each question with the recording. */
  readonly fetch: typeof fetch = (_input, init) => {
    const isStop = init?.method === "POST" && init.body === undefined;
    if (isStop) return Promise.resolve(new Response(null, { status: 204 }));
    const encoder = new TextEncoder();
    const { events } = this.recording;
    let next = 0;
    // How much later than it should the last chunk came, which those after it make up for.
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

  /** Waits so long, less what is made up for, and tells how late it is then. */
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
