// The chat transport of usechat for useChat() of AI SDK 5, 6 and 7. `usechat react` printed it; it is yours to change.
import type { ChatTransport, UIMessage, UIMessageChunk } from "ai";

const PATIENCE = 30_000; // Milliseconds after the last byte until the transport gives an answer up.
const MAKES_A_PART = /^((text|reasoning)-start|tool-input-.*|start-step|.*file|source-.*|data-.*|custom|steering-.*)$/;

export interface UsechatOptions {
  /** The address of the chat, such as "/api/chat". */
  api: string;
  /** Sent with each request. A function is called for each request, so that a token can expire. */
  headers?: HeadersInit | (() => HeadersInit | Promise<HeadersInit>) | undefined;
  /** Used in place of the global fetch, for example to send cookies to another origin. */
  fetch?: typeof globalThis.fetch | undefined;
}

/** One of the user's chats. The times are seconds since 1970. */
export type ChatEntry = { id: string; title: string; created: number; updated: number };

type Sent<M extends UIMessage> = Parameters<ChatTransport<M>["sendMessages"]>[0];
type Resumed = Parameters<ChatTransport<UIMessage>["reconnectToStream"]>[0] & { abortSignal?: AbortSignal };
type Chunks = ReadableStream<UIMessageChunk>;
type Controller = ReadableStreamDefaultController<Piece>;
type Request = (path: string, init?: RequestInit) => Promise<Response>;
type Message = { id: string; role: string; metadata?: unknown; parts: Piece[] };
/** A part of a message or a chunk of a stream, of any release. */
type Piece = { type: string; id?: string; toolCallId?: string; text?: string; state?: string; [more: string]: unknown };

export class UsechatTransport<M extends UIMessage = UIMessage> implements ChatTransport<M> {
  /** Some releases ask: a resumed stream repeats the answer from its beginning. */
  readonly resumeStreamIsReplay = true;
  private readonly resumes = new Map<string, Answer>();
  private readonly options: UsechatOptions;
  constructor(options: UsechatOptions) { this.options = options; }

  async sendMessages({ chatId, messages, trigger, messageId, abortSignal, headers, body }: Sent<M>): Promise<Chunks> {
    const message = messages[messages.length - 1];
    const goesOn = message?.role === "assistant" && trigger === "submit-message";
    const answer = new Answer(this.requests(chatId, headers));
    const sent = JSON.stringify({ ...body, id: chatId, message, trigger, messageId });
    // Never aborted: a user may stop before the response comes, and its header names the turn to stop.
    const asked = this.requests(undefined, headers)("", { method: "POST", body: sent });
    this.stopOnAbort(chatId, answer, abortSignal, asked);
    return answer.stream(asked.then((response) => answer.opened(response, true)), goesOn ? message.parts : []);
  }

  async reconnectToStream({ chatId, abortSignal, headers }: Resumed): Promise<Chunks | null> {
    const answer = new Answer(this.requests(chatId, headers));
    this.resumes.set(chatId, answer);
    this.stopOnAbort(chatId, answer, abortSignal);
    const found = await answer.connect();
    return found && answer.stream(found);
  }

  /** The messages of a chat, for a page that loads. The resume brings the message that is still being written. */
  async messages(chatId: string): Promise<M[]> {
    return (await this.requests(chatId)("/messages")).json();
  }

  /** The user's chats, most recent first. If there are more, `next` is the `after` of the next page. */
  async chats(after?: string): Promise<{ chats: ChatEntry[]; next?: string }> {
    return (await this.requests()(after === undefined ? "s" : `s?after=${encodeURIComponent(after)}`)).json();
  }

  /** Stops the running turn of a chat, and deletes the chat. */
  async remove(chatId: string): Promise<void> {
    await this.requests(chatId)("", { method: "DELETE" });
  }

  private requests(chatId?: string, more?: HeadersInit): Request {
    if (chatId === "." || chatId === "..") throw new Error(`${chatId} cannot be the id of a chat.`);
    const { api, headers, fetch } = this.options;
    const address = chatId === undefined ? api : `${api}/${encodeURIComponent(chatId)}`;
    return async (path, init) => {
      const all = new Headers(typeof headers === "function" ? await headers() : headers);
      new Headers(more).forEach((value, name) => all.set(name, value));
      if (init?.body) all.set("content-type", "application/json");
      const response = await (fetch ?? globalThis.fetch)(address + path, { ...init, headers: all });
      if (response.ok) return response;
      const text = (await response.text()) || `The server answered ${response.status}.`;
      throw response.status >= 500 || [408, 429].includes(response.status) ? new Error(text) : new Refusal(text);
    };
  }

  private stopOnAbort(chatId: string, answer: Answer, signal?: AbortSignal, asked?: Promise<Response>): void {
    const stop = async () => {
      const resume = this.resumes.get(chatId);
      answer.leave(signal?.reason);
      const turn = asked ? turnOf(await asked) : answer.turn;
      // StrictMode, and a page that mounts again, abort an answer and resume it at the same moment.
      await new Promise((resolve) => setTimeout(resolve, 0));
      if (!turn || this.resumes.get(chatId) !== resume) return;
      await this.requests(chatId)(`/stop?turn=${turn}`, { method: "POST", keepalive: true });
    };
    // If this request fails, nobody reads the turn, and the server stops it by itself.
    signal?.addEventListener("abort", () => void stop().catch(() => {}), { once: true });
  }
}

/** An error that another attempt would not change. */
class Refusal extends Error {}
const turnOf = (response: Response) => response.headers.get("x-usechat-turn");

/** One answer, read to its end over as many connections as it takes. */
class Answer {
  turn: string | null = null;
  private readonly shown: Piece[] = [];
  private readonly left = new AbortController();
  private interrupt = (): void => {};
  private last = ""; // The event id to resume after. Until it is known, nothing is shown.
  private alive = Date.now();
  private silence = 20_000; // Milliseconds without a byte after which a connection is dead.
  private attempts = 0;
  private readonly request: Request;
  constructor(request: Request) { this.request = request; }

  leave(reason?: unknown): void {
    this.left.abort(reason);
    this.interrupt();
  }

  /** Accepts a response that has the rest of the answer, or `all` of it. */
  opened(response: Response, all = false): Response {
    this.turn = turnOf(response);
    if (this.turn === null) throw new Refusal("The server sends no header x-usechat-turn, or CORS hides it.");
    if (all) this.last = `${this.turn}.0`;
    this.alive = Date.now();
    const seconds = Number(response.headers.get("x-usechat-keep-alive"));
    if (seconds > 0) this.silence = 2_000 * seconds + 1_000; // Twice the server's keep-alive, and a second.
    return response;
  }

  /** Reconnects until the server sends the rest, or the stored message. Null if no turn runs. */
  async connect(): Promise<Response | Message | null> {
    const patience = () => this.alive + Math.max(PATIENCE, this.silence + 10_000) - Date.now();
    for (;;) {
      const pause = this.attempts && Math.min(100 * 2 ** this.attempts, 5_000) * (0.5 + Math.random() / 2);
      await new Promise<void>((resolve) => setTimeout((this.interrupt = resolve), Math.min(pause, patience())));
      this.left.signal.throwIfAborted();
      this.attempts++;
      const bound = new AbortController();
      const init = { signal: bound.signal };
      const timer = setTimeout((this.interrupt = () => bound.abort()), Math.max(1_000, patience()));
      try {
        const response = await this.request(this.last ? `/stream?after=${this.last}` : "/stream", init);
        if (response.status === 200 && (!this.last || turnOf(response) === this.turn)) return this.opened(response);
        void response.body?.cancel().catch(() => {});
        if (this.turn === null) return null;
        // The turn has ended and the server has deleted its chunks, but the last message is what it said.
        const [message]: Message[] = await (await this.request("/messages?limit=1", init)).json();
        const begun = this.shown.find(({ type }) => type === "start")?.["messageId"] ?? message?.id;
        if (message?.role === "assistant" && message.id === begun) return message;
        throw new Refusal("The answer was cut off, and the server has no more of it. Please ask again.");
      } catch (error) {
        this.left.signal.throwIfAborted();
        if (error instanceof Refusal) throw error;
        if (patience() <= 0) throw new Error("The connection to the server was lost. Reload the page when it is back.");
      } finally {
        clearTimeout(timer);
      }
    }
  }

  /** The chunks of the answer. `before` are the parts of the message that the page already has. */
  stream(first: Promise<Response> | Response | Message, before: unknown[] = []): Chunks {
    return new ReadableStream({
      start: (to) => this.run(first, before as Piece[], to).finally(() => this.left.abort()),
      cancel: () => this.leave(),
    });
  }

  private async run(first: Promise<Response> | Response | Message, before: Piece[], to: Controller): Promise<void> {
    const left = new Promise<never>((_, reject) => (this.interrupt = () => reject(this.left.signal.reason)));
    let found: Response | Message | null = await Promise.race([first, left]);
    const wake = ({ type }: Event) => {
      if (type !== "online" && this.attempts === 0 && Date.now() - this.alive < this.silence) return;
      [this.alive, this.attempts] = [Date.now(), 0];
      this.interrupt();
    };
    globalThis.addEventListener?.("online", wake, this.left);
    globalThis.document?.addEventListener("visibilitychange", wake, this.left);
    while (found && !("parts" in found) && !(await this.read(found, to))) found = await this.connect();
    if (found && "parts" in found) for (const chunk of rest(found, before, this.shown)) to.enqueue(chunk);
    to.close();
  }

  /** Reads one connection until it ends, breaks or is interrupted. True if the answer is complete. */
  private async read(response: Response, to: Controller): Promise<boolean> {
    const [reader, decoder] = [response.body!.getReader(), new TextDecoder()];
    const held: Piece[] = [];
    this.interrupt = () => void reader.cancel().catch(() => {});
    const watch = setInterval(() => Date.now() - this.alive > this.silence && this.interrupt(), 1_000);
    try {
      for (let text = ""; ; ) {
        const { value } = await reader.read().catch(() => ({ value: undefined }));
        this.left.signal.throwIfAborted();
        if (!value) return ["finish", "abort", "error"].includes(this.shown[this.shown.length - 1]?.type ?? "");
        this.alive = Date.now();
        const events = (text + decoder.decode(value, { stream: true })).split("\n\n");
        text = events.pop() ?? "";
        for (const event of events) {
          const data = /(?:^|\n)data: ([^\n]*)/.exec(event)?.[1];
          if (data?.startsWith("{")) held.push(JSON.parse(data));
          this.last = /^id: ([^\n]*)/.exec(event)?.[1] ?? this.last;
          for (const chunk of this.last ? held.splice(0) : []) { to.enqueue(chunk); this.shown.push(chunk); }
          this.attempts = 0;
        }
      }
    } finally {
      clearInterval(watch);
      this.interrupt();
    }
  }
}

/** The chunks that a page lacks of a message, given its parts `before` and the chunks that it was shown. */
function* rest(message: Message, before: Piece[], shown: Piece[]): Generator<Piece> {
  const parts = before.map(() => ({ id: "", length: 0, isOpen: false }));
  const named = new Map(before.map(({ toolCallId, type, id }, index) => [toolCallId ?? `${type} ${id}`, parts[index]]));
  for (const { type, id = "", toolCallId, delta = "", transient } of shown) {
    const [, kind, step] = /^(text|reasoning)-(start|delta|end)$/.exec(type) ?? [];
    const name = kind ? `${kind} ${id}` : (toolCallId ?? (id && `${type} ${id}`));
    let had = step === "start" ? undefined : named.get(name);
    if (!had && !transient && MAKES_A_PART.test(type)) parts.push((had = { id, length: 0, isOpen: true }));
    if (had && name) named.set(name, had);
    if (had) had.length += String(delta).length;
    if (had && (step === "end" || /^tool-input-(available|error)$/.test(type))) had.isOpen = false;
  }
  yield { type: "start", messageId: message.id, messageMetadata: message.metadata };
  for (const [index, part] of message.parts.entries()) {
    const { type, text = "", state = "", toolCallId, approval, callProviderMetadata, resultProviderMetadata } = part;
    const had = parts[index];
    if (type === "text" || type === "reasoning") {
      const id = had?.id ?? part.id ?? `rest-${index}`;
      if (!had) yield { ...part, type: `${type}-start`, id };
      if (had?.isOpen === false) continue;
      yield { ...part, type: `${type}-delta`, id, delta: text.slice(had?.length ?? 0) };
      yield { ...part, type: `${type}-end`, id };
    } else if (toolCallId) {
      const name = type === "dynamic-tool" ? { dynamic: true } : { toolName: type.slice("tool-".length) };
      const call = { ...part, ...name, providerMetadata: callProviderMetadata };
      if (had?.isOpen !== false) yield { ...call, type: "tool-input-available" };
      if (!had && approval) yield { ...call, type: "tool-approval-request", approvalId: (approval as Message).id };
      if (/^output-/.test(state)) yield { ...call, type: `tool-${state}`, providerMetadata: resultProviderMetadata };
    } else if (!had || (part.id && type.startsWith("data-"))) {
      yield type === "step-start" ? { type: "start-step" } : part;
    }
  }
  yield { type: "finish" };
}
