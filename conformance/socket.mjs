// Plays pages whose chats share WebSockets: one JSON request a line on stdin, one JSON answer a line on stdout, in order.
import { Console } from 'node:console';
import { createInterface } from 'node:readline';
import { setImmediate as turn, setTimeout as timer } from 'node:timers/promises';

import WebSocket from 'ws';

import { json } from './chat.mjs';
import { load, versions } from './clients.mjs';
import { WatchedState } from './watched.mjs';

// stdout belongs to the answers; the packages write their warnings with console.info.
globalThis.console = new Console(process.stderr);
globalThis.AI_SDK_LOG_WARNINGS = false;

// The bound of all tests, for what hangs (tests/support/hang.py).
const HANG = 1000 * process.env.USECHAT_HANG_SECONDS;

// The only pinned client that has the transport, which came with 7.0.135.
const ai = await load(versions.at(-1));

const crashes = [];
process.on('unhandledRejection', error => crashes.push(error));
process.on('uncaughtException', error => crashes.push(error));

class Chat extends ai.AbstractChat {}

/** One page: a transport, whose sockets are counted and can be cut, and the chats that share it. */
class Page {
  #states = new Map();
  #actions = [];
  #sockets = [];

  constructor({ url, headers, protocols, handshake }) {
    const sockets = this.#sockets;
    class Socket extends WebSocket {
      constructor(address, offered) {
        super(address, offered, { headers: handshake });
        sockets.push(this);
      }
    }
    this.transport = new ai.WebSocketChatTransport({ url, headers, protocols, webSocket: Socket });
  }

  open({ chat, messages, resubmits }) {
    const state = new WatchedState(messages);
    const options = { id: chat, state, transport: this.transport, sendAutomaticallyWhen: resubmits && ai[resubmits] };
    state.chat = new Chat(options);
    this.#states.set(chat, state);
  }

  act({ chat, method, args }) {
    this.#actions.push(this.#states.get(chat).chat[method](...args));
  }

  until({ chat, seen }) {
    const state = this.#states.get(chat);
    return state.when(() => JSON.stringify(state.messages).includes(seen));
  }

  /** Waits until no chat waits for anything; a chat may post again without anybody to wait for. */
  async settle() {
    const idle = ({ status }) => ['ready', 'error'].includes(status);
    const states = [...this.#states.values()];
    do {
      await Promise.all(this.#actions.splice(0));
      for (const state of states) await state.when(() => idle(state));
      // What a chat does between two posts, it does in microtasks.
      await turn();
    } while (!states.every(idle));
  }

  look({ chat }) {
    const { status, error, messages } = this.#states.get(chat);
    return { status, error: error?.message ?? null, messages: json(messages), sockets: this.#sockets.length };
  }

  cut() {
    this.#sockets.at(-1).terminate();
  }

  close() {
    this.transport.close();
  }
}

const pages = [];

async function run({ op, page, ...request }) {
  if (op === 'page') return pages.push(new Page(request)) - 1;
  return pages[page][op](request);
}

async function patiently(promise, request) {
  const over = new AbortController();
  const late = timer(HANG, undefined, over).then(() => {
    throw new Error(`${JSON.stringify(request)} hangs`);
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
  const value = await patiently(run(request), request);
  if (crashes.length > 0) throw new Error(crashes.splice(0).map(crash => crash?.stack ?? String(crash)).join('\n'));
  return { value };
}

for await (const line of createInterface({ input: process.stdin })) {
  const reply = await answer(line).catch(error => ({ error: String(error?.message ?? error) }));
  process.stdout.write(`${JSON.stringify(reply)}\n`);
}
process.exit();
