/** Plays a recording as if a server sent it. */
import type { Recording } from "./file.ts";

export type Speed = 1 | 4 | "step";

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
    const body = new ReadableStream<Uint8Array>({
      pull: async (controller) => {
        const event = events[next];
        if (event === undefined) return controller.close();
        await this.#wait(event.at - (events[next - 1]?.at ?? 0));
        next += 1;
        if (init?.signal?.aborted) return controller.close();
        return controller.enqueue(encoder.encode(`data: ${event.data}\n\n`));
      },
    });
    return Promise.resolve(new Response(body, { headers: { "content-type": "text/event-stream" } }));
  };

  #wait(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = this.#speed === "step" ? undefined : setTimeout(() => this.#wake?.(), ms / this.#speed);
      this.#wake = () => {
        clearTimeout(timer);
        this.#wake = undefined;
        resolve();
      };
    });
  }
}
