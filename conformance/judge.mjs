// Reads one JSON request a line on stdin, answers with one JSON line on stdout, in order. README.md lists the requests.
import { Console } from 'node:console';
import { setImmediate as turn } from 'node:timers/promises';

import { converse, json } from './chat.mjs';
import { load, versions } from './clients.mjs';

// stdout belongs to the answers; the packages write their warnings with console.info.
globalThis.console = new Console(process.stderr);
globalThis.AI_SDK_LOG_WARNINGS = false;

// The message of a failed validation lists every member of the chunk union, up to 17 kB.
const MESSAGE_LIMIT = 1000;

const describe = error =>
  error instanceof Error
    ? { name: error.name, message: error.message.slice(0, MESSAGE_LIMIT) }
    : { name: 'thrown', message: String(error).slice(0, MESSAGE_LIMIT) };

const crashes = [];
process.on('unhandledRejection', error => crashes.push(error));
process.on('uncaughtException', error => crashes.push(error));

async function valid(ai, messages) {
  if (!ai.safeValidateUIMessages) return null;
  const result = await ai.safeValidateUIMessages({ messages });
  return result.success || describe(result.error).message;
}

async function read(ai, { sse, continues, each }) {
  const snapshots = [];
  let consumed = 0;
  let mayPost = false;
  const { chat, streaming, finish, toolCalls, data } = await converse(ai, {
    sse,
    continues,
    onChunkConsumed: message => {
      consumed++;
      if (each) snapshots.push(json(message));
    },
    resubmitWhen: messages => {
      mayPost ||= ai.lastAssistantMessageIsCompleteWithToolCalls({ messages });
      return false;
    },
  });
  const messages = json(chat.messages);
  return {
    status: chat.status,
    error: chat.error ? describe(chat.error) : null,
    messages: messages.filter(message => message.role === 'assistant'),
    accumulated: json(streaming.message),
    finish,
    toolCalls,
    data,
    consumed,
    mayPost,
    resubmits: ai.lastAssistantMessageIsCompleteWithToolCalls({ messages }),
    valid: await valid(ai, messages),
    ...(each && { snapshots }),
  };
}

async function loop(ai, { sse, continues, max = 5 }) {
  const { posts } = await converse(ai, {
    sse,
    continues,
    resubmitWhen: (messages, posts) => posts < max && ai.lastAssistantMessageIsCompleteWithToolCalls({ messages }),
  });
  return posts;
}

async function parse(ai, { chunks }) {
  let body;
  const transport = new ai.DefaultChatTransport({ fetch: async () => new Response(body) });
  const verdicts = [];
  for (const chunk of chunks) {
    body = `data: ${chunk.replaceAll('\n', '\ndata: ')}\n\n`;
    const stream = await transport.sendMessages({ chatId: 'chat', messages: [], trigger: 'submit-message' });
    verdicts.push(await stream.getReader().read().then(() => null, describe));
  }
  return verdicts;
}

const model = async (ai, { messages }) => ({ messages: json(await ai.convertToModelMessages(messages)) });

const operations = { read, loop, parse, model };

async function underEach(clients, run) {
  const results = {};
  for (const version of clients) {
    const ai = await load(version);
    try {
      results[version] = await run(ai);
    } catch (error) {
      crashes.push(error);
    }
    await turn();
    if (crashes.length > 0) results[version] = { crash: crashes.splice(0).map(describe) };
  }
  return results;
}

function check({ op, clients, sse, chunks, messages }) {
  const isText = value => typeof value === 'string';
  if (!Object.hasOwn(operations, op)) throw new Error(`unknown op ${JSON.stringify(op)}`);
  if (!Array.isArray(clients)) throw new Error('"clients" must be a list of versions');
  if ((op === 'read' || op === 'loop') && !isText(sse)) throw new Error('"sse" must be the text of a body');
  if (op === 'parse' && !(Array.isArray(chunks) && chunks.every(isText))) {
    throw new Error('"chunks" must be a list of texts');
  }
  if (op === 'model' && !Array.isArray(messages)) throw new Error('"messages" must be a list of messages');
}

async function answer(line) {
  const request = JSON.parse(line);
  if (request.op === 'clients') return { clients: versions };
  check(request);
  return { results: await underEach(request.clients, ai => operations[request.op](ai, request)) };
}

async function* lines(input) {
  let rest = '';
  for await (const text of input.setEncoding('utf8')) {
    // node:readline would also split at U+2028, which may stand unescaped in JSON.
    const complete = (rest + text).split('\n');
    rest = complete.pop();
    yield* complete;
  }
}

for await (const line of lines(process.stdin)) {
  const reply = await answer(line).catch(error => ({ error: describe(error).message }));
  process.stdout.write(`${JSON.stringify(reply)}\n`);
}
