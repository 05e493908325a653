// Node's own server of the benchmark: `ai` 7 behind node:http. `node peer.mjs <script>` prints its port.
import { createServer } from 'node:http';
import { createUIMessageStream, pipeUIMessageStreamToResponse } from '../conformance/node_modules/ai-7.0.169/dist/index.js';

const WORDS = ['The ', 'tides ', 'of ', 'the ', 'naïve ', 'shore ', 'turn ', 'by ', 'noon', ', ', 'so ', 'wait.\n'];
const TEXT = Array.from({ length: 2_000 }, (_, index) => WORDS[index % WORDS.length]);

const scripts = {
  async *fast() {
    yield* TEXT;
  },
  async *paced() {
    for (let count = 0; count < 200; count += 1) {
      await new Promise(resolve => setTimeout(resolve, 20));
      // The load client has the same clock.
      yield `@${process.hrtime.bigint()}@`;
    }
  },
  async *idle() {
    yield* TEXT.slice(0, 10);
    await new Promise(() => {});
  },
};

const script = scripts[process.argv[2]];

function answer() {
  return createUIMessageStream({
    execute: async ({ writer }) => {
      for (const type of ['start', 'start-step']) writer.write({ type });
      writer.write({ type: 'text-start', id: 'text' });
      for await (const delta of script()) writer.write({ type: 'text-delta', id: 'text', delta });
      writer.write({ type: 'text-end', id: 'text' });
      for (const type of ['finish-step', 'finish']) writer.write({ type });
    },
  });
}

const server = createServer(async (request, response) => {
  let body = '';
  for await (const piece of request) body += piece;
  JSON.parse(body);
  pipeUIMessageStreamToResponse({ response, stream: answer() });
});
server.listen({ host: '127.0.0.1', port: 0, backlog: 2048 }, () => console.log(server.address().port));
