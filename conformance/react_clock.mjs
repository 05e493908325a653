// The transport of `usechat react` on a clock and a network of the test's own: `TRANSPORT=<module> node --test react_clock.mjs`.
import assert from 'node:assert/strict';
import { afterEach, beforeEach, mock, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';

const page = new EventTarget();
globalThis.addEventListener = page.addEventListener.bind(page);
globalThis.document = new EventTarget();

const { UsechatTransport } = await import(process.env.TRANSPORT);

const QUESTION = { id: 'q', role: 'user', parts: [{ type: 'text', text: 'hi' }] };
const TURN = '00112233445566778899aabbccddeeff';
const LOST = 'The connection to the server was lost. Reload the page when it is back.';

const frame = (index, chunk) => `id: 00112233.${index}\ndata: ${JSON.stringify(chunk)}\n\n`;
const START = frame(1, { type: 'start', messageId: 'm' });
const FINISH = frame(2, { type: 'finish' });

/** A response that the test writes to. */
class Reply {
  constructor({ status = 200, headers = { 'x-usechat-turn': TURN } } = {}) {
    const body = new ReadableStream({
      start: controller => {
        this.controller = controller;
      },
      cancel: () => {
        this.cancelled = true;
      },
    });
    this.response = new Response(status === 204 ? null : body, { status, headers });
  }

  say(text) {
    this.controller.enqueue(new TextEncoder().encode(text));
    return this;
  }

  end() {
    this.controller.close();
    return this.response;
  }

  /** What was said before arrives. */
  async break() {
    await turn();
    this.controller.error(new TypeError('network error'));
    await turn();
  }
}

const down = () => Promise.reject(new TypeError('fetch failed'));
const hang = ({ signal }) => new Promise((_, reject) => signal.addEventListener('abort', reject));
const text = (words, status) => new Response(words, { status });

const readers = [];

/** A transport whose requests are noted and answered by what the test gives, one after another; the last one stays. */
class Page {
  requests = [];
  #answers;

  constructor(answers, options) {
    this.#answers = answers;
    this.transport = new UsechatTransport({ api: '/api/chat', fetch: (...request) => this.#fetch(...request), ...options });
  }

  #fetch(url, { method = 'GET', ...init }) {
    this.requests.push(`${method} ${url}`);
    this.init = init;
    const answer = this.#answers.length > 1 ? this.#answers.shift() : this.#answers[0];
    return Promise.resolve(typeof answer === 'function' ? answer(init) : (answer.response ?? answer));
  }

  async send(abortSignal) {
    const options = { chatId: 'c', trigger: 'submit-message', messages: [{ ...QUESTION, id: 'p' }, QUESTION], abortSignal };
    this.read(await this.transport.sendMessages(options));
  }

  /** Notes the chunks that come, and what comes at the end. */
  read(stream) {
    this.chunks = [];
    const reader = stream.getReader();
    readers.push(reader);
    const next = async () => {
      for (let it = await reader.read(); !it.done; it = await reader.read()) this.chunks.push(it.value.type);
      this.end = 'closed';
    };
    next().catch(error => {
      this.end = error;
    });
  }
}

async function pass(milliseconds) {
  for (let passed = 0; passed < milliseconds; passed += 100) {
    await turn();
    await turn();
    mock.timers.tick(100);
  }
  await turn();
  await turn();
}

// Then the pauses are as long as they can be: after 0, 0.2, 0.6, 1.4, 3, 6.2, 11.2, 16.2, 21.2, 26.2 and 30 seconds.
Math.random = () => 1;

beforeEach(() => mock.timers.enable({ apis: ['setTimeout', 'setInterval', 'Date'] }));

afterEach(async () => {
  await Promise.allSettled(readers.splice(0).map(reader => reader.cancel()));
  await turn();
  mock.timers.reset();
});

test('it reads on at once, in the same stream', async () => {
  const first = new Reply();
  const second = new Reply();
  const here = new Page([first, second]);
  await here.send();
  await first.say(START.slice(0, -1)).say('\n').break();
  await pass(100);
  assert.deepEqual(here.requests, ['POST /api/chat', 'GET /api/chat/c/stream?after=00112233.1']);
  second.say(`${FINISH}data: [DONE]\n\n`).end();
  await pass(100);
  assert.deepEqual([here.chunks, here.end], [['start', 'finish'], 'closed']);
});

test('before the first id it reads from the beginning of the turn', async () => {
  const first = new Reply();
  const here = new Page([first, new Reply().say(START + FINISH)]);
  await here.send();
  await first.say(START.slice(0, -1)).break();
  await pass(100);
  assert.deepEqual(here.requests, ['POST /api/chat', `GET /api/chat/c/stream?after=${TURN}.0`]);
  assert.deepEqual(here.chunks, ['start', 'finish']);
});

test('it gives up 30 seconds after the last byte', async () => {
  for (const [unreachable, attempts] of [[down, 11], [() => text('', 502), 11], [hang, 1]]) {
    const first = new Reply();
    const here = new Page([first, unreachable]);
    await here.send();
    await pass(10_000);
    first.say(START);
    await pass(100);
    await first.break();
    await pass(29_000);
    assert.equal(here.end, undefined);
    await pass(2_000);
    assert.equal(here.end.message, LOST);
    assert.deepEqual(here.chunks, ['start']);
    const { length } = here.requests;
    assert.equal(length, 1 + attempts);
    await pass(60_000);
    assert.equal(here.requests.length, length);
  }
});

// What the server says of its keep-alives, and the seconds of silence after which its connection is dead.
for (const [told, seconds] of [['3', 7], ['0.5', 2], ['60', 121], [undefined, 20], ['soon', 20], ['0', 20]]) {
  test(`a connection with keep-alives each ${told} seconds is another one after ${seconds} of silence`, async () => {
    const headers = { 'x-usechat-turn': TURN, ...(told && { 'x-usechat-keep-alive': told }) };
    const first = new Reply({ headers });
    const here = new Page([first, down, down, new Reply({ headers }).say(FINISH)]);
    await here.send();
    first.say(START);
    await pass(seconds * 500);
    first.say(': keep-alive\n\n');
    await pass(seconds * 1_000 - 900);
    assert.equal(here.requests.length, 1);
    await pass(4_000);
    assert.deepEqual(here.requests.slice(1), Array(3).fill('GET /api/chat/c/stream?after=00112233.1'));
    assert.equal(first.cancelled, true);
    assert.deepEqual(here.chunks, ['start', 'finish']);
  });
}

test('a server that is silent for long is tried for ten seconds more', async () => {
  const first = new Reply({ headers: { 'x-usechat-turn': TURN, 'x-usechat-keep-alive': '60' } });
  const here = new Page([first, down]);
  await here.send();
  first.say(START);
  await pass(130_000);
  assert.equal(here.end, undefined);
  await pass(2_000);
  assert.equal(here.end.message, LOST);
});

for (const [target, type] of [[page, 'online'], [document, 'visibilitychange']]) {
  test(`it tries at once on ${type}, and for 30 seconds more`, async () => {
    const first = new Reply();
    const here = new Page([first, down]);
    await here.send();
    await first.say(START).break();
    await pass(25_000);
    const before = here.requests.length;
    target.dispatchEvent(new Event(type));
    await pass(100);
    assert.equal(here.requests.length, before + 1);
    await pass(29_000);
    assert.equal(here.end, undefined);
    await pass(2_000);
    assert.equal(here.end.message, LOST);
    target.dispatchEvent(new Event(type));
    await pass(100);
    assert.equal(here.end.message, LOST);
  });
}

test('a connection that speaks is left alone when the page is looked at, and is another one when the network is', async () => {
  const first = new Reply();
  const here = new Page([first, new Reply()]);
  await here.send();
  first.say(START);
  await pass(1_000);
  document.dispatchEvent(new Event('visibilitychange'));
  await pass(1_000);
  assert.equal(here.requests.length, 1);
  page.dispatchEvent(new Event('online'));
  await pass(100);
  assert.deepEqual(here.requests.slice(1), ['GET /api/chat/c/stream?after=00112233.1']);
});

test('what never got a response is an error, and is not sent again', async () => {
  const here = new Page([down]);
  await here.send();
  await pass(60_000);
  assert.deepEqual([here.end.message, here.requests], ['fetch failed', ['POST /api/chat']]);
});

test('what the server says is shown, and what it may say otherwise later is asked again', async () => {
  const refused = new Page([() => text('You are not signed in.', 401)]);
  await refused.send();
  await pass(100);
  assert.deepEqual([refused.end.message, refused.requests.length], ['You are not signed in.', 1]);

  const first = new Reply();
  const here = new Page([first, () => text('Too many.', 429), () => text('Later.', 503), () => text('No longer.', 401)]);
  await here.send();
  await first.say(START).break();
  await pass(2_000);
  assert.deepEqual([here.end.message, here.requests.length], ['No longer.', 4]);
});

test('the answer of another turn is not taken for the rest of this one', async () => {
  const first = new Reply();
  const other = new Reply({ headers: { 'x-usechat-turn': 'other' } }).say(START + FINISH);
  const stored = { id: 'm', role: 'assistant', parts: [{ type: 'step-start' }] };
  const here = new Page([first, other, () => Response.json([stored])]);
  await here.send();
  await first.say(START).break();
  await pass(100);
  assert.equal(here.requests.at(-1), 'GET /api/chat/c/messages?limit=1');
  assert.deepEqual([here.chunks, here.end], [['start', 'start', 'start-step', 'finish'], 'closed']);
  assert.equal(other.cancelled, true);
});

test('an answer that the server lost is an error', async () => {
  for (const messages of [[QUESTION], [{ id: 'another', role: 'assistant', parts: [] }], []]) {
    const first = new Reply();
    const here = new Page([first, new Reply({ status: 204 }), () => Response.json(messages)]);
    await here.send();
    await first.say(START).break();
    await pass(100);
    assert.equal(here.end.message, 'The answer was cut off, and the server has no more of it. Please ask again.');
  }
});

test('a response that names no turn is an error that says so', async () => {
  const here = new Page([new Reply({ headers: {} })]);
  await here.send();
  await pass(100);
  assert.equal(here.end.message, 'The server sends no header x-usechat-turn, or CORS hides it.');
});

test('who stops before there is a response stops the turn that it names', async () => {
  let respond;
  const asked = new Promise(resolve => {
    respond = resolve;
  });
  const here = new Page([() => asked, text(null, 204)]);
  const stop = new AbortController();
  await here.send(stop.signal);
  stop.abort();
  await pass(100);
  assert.deepEqual([here.end.name, here.requests], ['AbortError', ['POST /api/chat']]);
  respond(new Reply().response);
  await pass(100);
  assert.deepEqual(here.requests.slice(1), [`POST /api/chat/c/stop?turn=${TURN}`]);
});

test('a stream that is cancelled and not stopped is left, and asks for nothing more', async () => {
  const first = new Reply();
  const here = new Page([first]);
  const options = { chatId: 'c', trigger: 'submit-message', messages: [QUESTION], abortSignal: new AbortController().signal };
  const stream = await here.transport.sendMessages(options);
  first.say(START);
  await pass(100);
  await stream.cancel();
  await pass(60_000);
  assert.deepEqual([here.requests, first.cancelled], [['POST /api/chat'], true]);
});

test('only the last message is sent, with the fields and headers of the call, and headers are asked for each time', async () => {
  let asked = 0;
  const first = new Reply();
  const here = new Page([first, new Reply()], { headers: async () => ({ authorization: `Bearer ${++asked}` }) });
  const call = { body: { lines: 3, id: 'x' }, headers: { 'x-own': 'yes' } };
  const messages = [{ ...QUESTION, id: 'p' }, QUESTION];
  const stream = await here.transport.sendMessages({ chatId: 'c', trigger: 'regenerate-message', messageId: 'm', messages, ...call });
  await turn();
  assert.deepEqual(JSON.parse(here.init.body), { lines: 3, id: 'c', message: QUESTION, trigger: 'regenerate-message', messageId: 'm' });
  const sent = { authorization: 'Bearer 1', 'content-type': 'application/json', 'x-own': 'yes' };
  assert.deepEqual(Object.fromEntries(here.init.headers), sent);
  here.read(stream);
  await first.break();
  await pass(100);
  assert.deepEqual(Object.fromEntries(here.init.headers), { authorization: 'Bearer 2', 'x-own': 'yes' });
});

test('an id that would leave the address of the chat is refused', async () => {
  const here = new Page([text('[]', 200)]);
  await assert.rejects(here.transport.messages('..'), { message: '.. cannot be the id of a chat.' });
  await here.transport.messages('a/b?c');
  assert.deepEqual(here.requests, ['GET /api/chat/a%2Fb%3Fc/messages']);
});
