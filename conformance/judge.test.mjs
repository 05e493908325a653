import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { after, test } from 'node:test';

const judge = spawn(process.execPath, [new URL('judge.mjs', import.meta.url).pathname], {
  stdio: ['pipe', 'pipe', 'inherit'],
});
const answers = createInterface({ input: judge.stdout })[Symbol.asyncIterator]();

async function askRaw(line) {
  judge.stdin.write(`${line}\n`);
  return JSON.parse((await answers.next()).value);
}
const ask = request => askRaw(JSON.stringify(request));
const body = chunks => chunks.map(chunk => `data: ${JSON.stringify(chunk)}\n\n`).join('');

const { clients } = await ask({ op: 'clients' });
const NEWEST = clients.at(-1);
after(() => judge.stdin.end());

const toolStep = [
  { type: 'start', messageId: 'm' },
  { type: 'start-step' },
  { type: 'reasoning-start', id: 'r' },
  { type: 'reasoning-delta', id: 'r', delta: 'look it up' },
  { type: 'reasoning-end', id: 'r' },
  { type: 'tool-input-start', toolCallId: 'c', toolName: 'weather' },
  { type: 'tool-input-delta', toolCallId: 'c', inputTextDelta: '{"city":"Ber' },
  { type: 'tool-input-delta', toolCallId: 'c', inputTextDelta: 'lin","days":[1' },
  { type: 'tool-input-delta', toolCallId: 'c', inputTextDelta: ',2]}' },
  { type: 'tool-input-available', toolCallId: 'c', toolName: 'weather', input: { city: 'Berlin', days: [1, 2] } },
  { type: 'tool-output-available', toolCallId: 'c', output: null },
  { type: 'finish-step' },
];
const textStep = [
  { type: 'start-step' },
  { type: 'text-start', id: 't' },
  { type: 'text-delta', id: 't', delta: 'warm' },
  { type: 'data-chart', id: 'd', data: { points: [1] } },
  { type: 'text-delta', id: 't', delta: ' and dry' },
  { type: 'data-chart', id: 'd', data: { points: [1, 2] } },
  { type: 'text-end', id: 't' },
  { type: 'finish-step' },
];
const finish = { type: 'finish', messageMetadata: { tokens: 3 } };

test('the clients are sorted by version', () => {
  assert.equal(clients.length, 10);
  assert.deepEqual(clients.slice(0, 5), ['5.0.0', '5.0.92', '5.0.216', '5.0.277', '6.0.0']);
});

test('snapshot i is what a stream of the first i chunks builds', async () => {
  const chunks = [...toolStep, ...textStep, finish];
  const sse = `: a comment\n\n${body(chunks)}data: [DONE]\n\n`;
  const { results } = await ask({ op: 'read', clients, sse, each: true });
  const built = Object.fromEntries(clients.map(version => [version, []]));
  for (let length = 1; length <= chunks.length; length++) {
    const prefix = await ask({ op: 'read', clients, sse: body(chunks.slice(0, length)) });
    for (const version of clients) built[version].push(prefix.results[version].accumulated);
  }
  for (const version of clients) {
    const { snapshots, messages, data, status, error, toolCalls, resubmits } = results[version];
    assert.deepEqual(snapshots, built[version], version);
    assert.deepEqual(snapshots[7].parts[2].input, { city: 'Berlin', days: [1] }, version);
    assert.deepEqual(messages, [snapshots.at(-1)], version);
    assert.deepEqual([status, error, toolCalls, resubmits], ['ready', null, ['c'], false], version);
    assert.deepEqual(data.map(part => part.data.points.length), [1, 2]);
  }
});

test('a refused chunk ends the stream and leaves what came before it', async () => {
  const sse = body([...textStep.slice(0, 3), { type: 'no-such-chunk' }, ...textStep.slice(3)]);
  const { results } = await ask({ op: 'read', clients, sse, each: true });
  for (const version of clients) {
    const { status, error, messages, snapshots } = results[version];
    assert.deepEqual([status, error.name, snapshots.length], ['error', 'AI_TypeValidationError', 3], version);
    assert.deepEqual(messages[0].parts, [{ type: 'step-start' }, { type: 'text', text: 'warm', state: 'streaming' }]);
  }
});

test('a continuation adds to the message that it was given', async () => {
  const call = { type: 'tool-weather', toolCallId: 'c', state: 'input-available', input: {} };
  const continues = { id: 'm', role: 'assistant', parts: [{ type: 'step-start' }, call] };
  const output = { type: 'tool-output-available', toolCallId: 'c', output: 21 };
  const sse = body([{ type: 'start', messageId: 'm' }, output, ...textStep.slice(0, 3)]);
  const { results } = await ask({ op: 'read', clients, sse, continues, each: true });
  for (const version of clients) {
    const { messages, snapshots } = results[version];
    assert.deepEqual(snapshots[0], continues, version);
    assert.deepEqual(messages, [
      {
        ...continues,
        parts: [
          { type: 'step-start' },
          { ...call, state: 'output-available', output: 21 },
          { type: 'step-start' },
          { type: 'text', text: 'warm', state: 'streaming' },
        ],
      },
    ]);
  }
});

test('a turn that ends with a tool result is posted again', async () => {
  const looping = await ask({ op: 'loop', clients, sse: body([...toolStep, finish]), max: 2 });
  assert.deepEqual(Object.values(looping.results), clients.map(() => 2));
  const healthy = await ask({ op: 'loop', clients, sse: body([...toolStep, ...textStep, finish]), max: 2 });
  assert.deepEqual(Object.values(healthy.results), clients.map(() => 1));
});

test('who reads a turn tells how much of it was read and whether it would be posted again', async () => {
  const told = async chunks => {
    const { results } = await ask({ op: 'read', clients, sse: body(chunks) });
    return new Set(Object.values(results).map(({ consumed, mayPost }) => `${consumed} ${mayPost}`));
  };
  assert.deepEqual(await told([...toolStep, finish]), new Set([`${toolStep.length + 1} true`]));
  assert.deepEqual(await told([...textStep, finish]), new Set([`${textStep.length + 1} false`]));
  assert.deepEqual(await told([...textStep, { type: 'no-such-chunk' }]), new Set([`${textStep.length} false`]));
});

test('a page does not see an empty last step until a later chunk updates it', async () => {
  const emptyStep = [...toolStep, { type: 'start-step' }, { type: 'finish-step' }];
  const unseen = await ask({ op: 'read', clients, sse: body([...emptyStep, { type: 'finish' }]) });
  const seen = await ask({ op: 'read', clients, sse: body([...emptyStep, finish]) });
  for (const version of clients) {
    const { messages, accumulated, resubmits } = unseen.results[version];
    assert.equal(resubmits, true, version);
    assert.deepEqual([...messages[0].parts, { type: 'step-start' }], accumulated.parts, version);
    assert.equal(seen.results[version].resubmits, false, version);
  }
});

test('a chunk is judged alone', async () => {
  const accepted = ['{"type":"text-delta","id":"t","delta":"x"}', '{\n"type":"start"}'];
  const chunks = [...accepted, '{"type":"start","messageId":null}', '{'];
  const { results } = await ask({ op: 'parse', clients, chunks });
  for (const version of clients) {
    const names = results[version].map(verdict => verdict?.name ?? null);
    assert.deepEqual(names, [null, null, 'AI_TypeValidationError', 'AI_JSONParseError'], version);
  }
});

test('bad requests and crashes are answered and the next request is served', async () => {
  assert.match((await askRaw('{')).error, /JSON/);
  assert.match((await ask({ op: 'guess' })).error, /unknown op "guess"/);
  assert.match((await ask({ op: 'read', clients: ['4.0.0'], sse: '' })).error, /no client "4\.0\.0"/);
  const noParts = { id: 'm', role: 'assistant' };
  const crashed = await ask({ op: 'read', clients: [NEWEST], sse: '', continues: noParts });
  assert.equal(crashed.results[NEWEST].crash[0].name, 'TypeError');
  const separator = await ask({ op: 'parse', clients: [NEWEST], chunks: ['{"type":"error","errorText":"\u2028"}'] });
  assert.deepEqual(separator, { results: { [NEWEST]: [null] } });
});

test('model gives the messages that each client would give to a model', async () => {
  const messages = [{ id: 'm', role: 'user', parts: [{ type: 'text', text: 'hi' }, { type: 'data-x', data: 1 }] }];
  const { results } = await ask({ op: 'model', clients, messages });
  const asked = { messages: [{ role: 'user', content: [{ type: 'text', text: 'hi' }] }] };
  assert.deepEqual(results, Object.fromEntries(clients.map(version => [version, asked])));
  assert.deepEqual(await ask({ op: 'model', clients }), { error: '"messages" must be a list of messages' });
});
