// Plays users' pages against a real server: one JSON request a line on stdin, one JSON answer a line on stdout, in order.
import { Console } from 'node:console';
import { once } from 'node:events';
import net from 'node:net';
import { createInterface } from 'node:readline';
import { setImmediate as turn, setTimeout as timer } from 'node:timers/promises';

import { json } from './chat.mjs';
import { load, loadHook } from './clients.mjs';
import { Watched, WatchedState } from './watched.mjs';

// stdout belongs to the answers; the packages write their warnings with console.info.
globalThis.console = new Console(process.stderr);
globalThis.AI_SDK_LOG_WARNINGS = false;

// The bound of all tests, for what hangs (tests/support/hang.py).
const HANG = 1000 * process.env.USECHAT_HANG_SECONDS;

const crashes = [];
process.on('unhandledRejection', error => crashes.push(error));
process.on('uncaughtException', error => crashes.push(error));

/** The wire between one page and the server, which can be cut in the middle of a response.

    Of `cuts` each stream takes the next: after so many bytes of its body, or before its head ends, the wire is cut. */
class Wire {
  #sockets = new Set();
  #server;
  #cuts;

  constructor(cuts = []) {
    this.#cuts = [...cuts];
  }

  async lay(port) {
    this.#server = net.createServer(near => {
      const far = net.connect(port, '127.0.0.1');
      this.#join(near, far);
      this.#join(far, near, new Shears(this.#cuts));
    });
    this.#server.listen(0, '127.0.0.1');
    await once(this.#server, 'listening');
    return this.#server.address().port;
  }

  #join(from, to, shears) {
    this.#sockets.add(from);
    if (shears) {
      // What the page sends begins a request, and with it the next response.
      to.on('data', () => shears.begin());
      from.on('data', bytes => {
        const whole = shears.take(bytes);
        to.write(whole);
        if (whole.length < bytes.length) to.end(() => from.destroy());
      });
    } else {
      from.pipe(to);
    }
    from.on('error', () => {});
    from.on('close', () => {
      this.#sockets.delete(from);
      to.destroySoon();
    });
  }

  cut() {
    for (const socket of this.#sockets) socket.destroy();
  }

  close() {
    this.#server.close();
    this.cut();
  }
}

/** Says how much of a response passes: all, but of a stream only what comes before its cut. */
class Shears {
  #cuts;
  #head = Buffer.alloc(0);
  #left = Infinity;

  constructor(cuts) {
    this.#cuts = cuts;
  }

  begin() {
    this.#head = Buffer.alloc(0);
    this.#left = Infinity;
  }

  /** The bytes that pass; fewer than there are if the wire is to be cut here. */
  take(bytes) {
    if (this.#head === null) return this.#pass(bytes, 0);
    const before = this.#head.length;
    this.#head = Buffer.concat([this.#head, bytes]);
    const end = this.#head.indexOf('\r\n\r\n');
    if (end === -1) return bytes;
    const isStream = this.#head.subarray(0, end).includes('text/event-stream');
    this.#head = null;
    if (isStream) this.#left = this.#cuts.shift() ?? Infinity;
    return this.#pass(bytes, end + 4 - before);
  }

  #pass(bytes, bodyAt) {
    const most = bodyAt + this.#left;
    this.#left -= bytes.length - bodyAt;
    return bytes.length > most ? bytes.subarray(0, most) : bytes;
  }
}

/** The body, which ends with the error of Chromium when the wire is cut: some clients look for its words. */
function asInChromium(body, onBytes) {
  const reader = body.getReader();
  return new ReadableStream(
    {
      async pull(controller) {
        try {
          const { done, value } = await reader.read();
          if (done) controller.close();
          else {
            onBytes(value);
            controller.enqueue(value);
          }
        } catch (error) {
          controller.error(error.name === 'AbortError' ? error : new TypeError('network error'));
        }
      },
      cancel: reason => reader.cancel(reason),
    },
    { highWaterMark: 0 },
  );
}

const withLastOnly = ({ id, messages, trigger, messageId }) => ({
  body: { id, message: messages.at(-1), trigger, messageId },
});

class Page {
  #wire;
  #watched;
  #unmount = () => {};
  #actions = [];
  #requests = [];
  #data = [];
  #toolCalls = [];

  async open({ client, hook, ownChat, port, path, chat, messages, headers, resubmits, lastOnly, react, cuts, strict, resume }) {
    const ai = await load(client);
    this.#wire = new Wire(cuts);
    const api = `http://127.0.0.1:${await this.#wire.lay(port)}${path}`;
    const fetch = (url, init) => this.#fetch(url, init);
    this.transport = react
      ? new (await import(react)).UsechatTransport({ api, headers, fetch })
      : new ai.DefaultChatTransport({ api, headers, fetch, prepareSendMessagesRequest: lastOnly ? withLastOnly : undefined });
    const options = {
      id: chat,
      transport: this.transport,
      sendAutomaticallyWhen: resubmits ? ai[resubmits] : undefined,
      onData: part => void this.#data.push(json(part)),
      onToolCall: ({ toolCall }) => void this.#toolCalls.push(toolCall.toolCallId),
    };
    if (hook) {
      await this.#render(await loadHook(hook), { ...options, messages }, ownChat, { strict, resume });
    } else {
      class Chat extends ai.AbstractChat {}
      this.#watched = new WatchedState(messages);
      this.#watched.chat = new Chat({ ...options, state: this.#watched });
    }
  }

  async #render({ useChat, Chat }, options, ownChat, { strict, resume }) {
    // React asks at its import what the console can do, and must find the one of above.
    const { render } = await import('./hook.mjs');
    this.#watched = new Watched();
    const argument = { ...(ownChat ? { chat: new Chat(options) } : options), resume };
    const told = chat => {
      this.#watched.chat = chat;
      this.#watched.wake();
    };
    this.#unmount = render(useChat, argument, told, strict);
    await this.#watched.when(() => this.chat);
  }

  get chat() {
    return this.#watched.chat;
  }

  async #fetch(url, init) {
    const { pathname, search } = new URL(url);
    const request = { method: init.method ?? 'GET', path: pathname, query: search, keptAlive: 0 };
    this.#requests.push(request);
    const response = await fetch(url, init);
    request.status = response.status;
    request.turn = response.headers.get('x-usechat-turn');
    const note = bytes => {
      if (!Buffer.from(bytes).includes(': keep-alive')) return;
      request.keptAlive++;
      this.#watched.wake();
    };
    return response.body ? new Response(asInChromium(response.body, note), response) : response;
  }

  act(method, args) {
    // Before 5.0.89 it had another name.
    const name = method in this.chat || method !== 'addToolOutput' ? method : 'addToolResult';
    this.#actions.push(this.chat[name](...args));
  }

  until(seen) {
    return this.#watched.when(() => JSON.stringify(this.chat.messages.at(-1) ?? null).includes(seen));
  }

  untilKeptAlive() {
    return this.#watched.when(() => this.#requests.at(-1)?.keptAlive > 1);
  }

  async done() {
    await Promise.all(this.#actions.splice(0));
    await turn();
  }

  /** Waits until the page waits for nothing; some clients post again without anybody to wait for. */
  async settle() {
    const idle = () => ['ready', 'error'].includes(this.chat.status);
    do {
      await this.done();
      await this.#watched.when(idle);
      // What the clients do between two requests, they do in microtasks.
      await turn();
    } while (!idle());
  }

  cut() {
    this.#wire.cut();
  }

  close() {
    this.#unmount();
    this.#wire.close();
  }

  look() {
    return {
      status: this.chat.status,
      error: this.chat.error ? this.chat.error.message : null,
      messages: json(this.chat.messages),
      requests: this.#requests,
      data: this.#data,
      toolCalls: this.#toolCalls,
    };
  }
}

const pages = [];

const operations = {
  async open(request) {
    const page = new Page();
    await page.open(request);
    return pages.push(page) - 1;
  },
  act: ({ page, method, args }) => pages[page].act(method, args),
  until: ({ page, seen }) => pages[page].until(seen),
  untilKeptAlive: ({ page }) => pages[page].untilKeptAlive(),
  look: ({ page }) => pages[page].look(),
  /** Asks the page's transport. */
  ask: ({ page, method, args }) => pages[page].transport[method](...args),
  done: ({ page }) => pages[page].done().then(() => pages[page].look()),
  settle: ({ page }) => pages[page].settle().then(() => pages[page].look()),
  cut: ({ page }) => pages[page].cut(),
  close: ({ page }) => pages[page].close(),
};

async function patiently(promise, request) {
  const over = new AbortController();
  const late = timer(HANG, undefined, over).then(() => {
    const page = pages[request.page];
    throw new Error(`${JSON.stringify(request)} hangs: ${JSON.stringify(page?.look())}`);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    late.catch(() => {});
    over.abort();
  }
}

async function answer(line) {
  const request = JSON.parse(line);
  const value = await patiently(operations[request.op](request), request);
  if (crashes.length > 0) throw new Error(crashes.splice(0).map(crash => crash?.stack ?? String(crash)).join('\n'));
  return { value };
}

for await (const line of createInterface({ input: process.stdin })) {
  const reply = await answer(line).catch(error => ({ error: String(error?.message ?? error) }));
  process.stdout.write(`${JSON.stringify(reply)}\n`);
}
process.exit();
