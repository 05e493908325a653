// npm `resumable-stream` in the benchmark of turns on Redis: `node resumable.mjs <url>` plays the producer or the
// subscribers, one JSON request a line on stdin, one JSON answer a line on stdout.
import { createInterface } from 'node:readline';

import { createClient } from 'redis';
import { createResumableStreamContext } from 'resumable-stream';

const url = process.argv[2];
const connect = () => createClient({ url }).connect();
const context = createResumableStreamContext({ waitUntil: null, publisher: await connect(), subscriber: await connect() });

const frame = index => `id: 0123abcd.${index}\ndata: {"type":"text-delta","id":"0","delta":"@${process.hrtime.bigint()}@"}\n\n`;
const pause = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));
const cpu = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
};

/** A source that says nothing before `go`: all at once, or `rate` chunks a second. */
function makeSource(gate, { chunks, rate }, began) {
  let index = 0;
  return new ReadableStream({
    async pull(controller) {
      if (index === 0) {
        await gate;
        began.at = process.hrtime.bigint();
        began.cpu = cpu();
      }
      if (index === chunks) return controller.close();
      if (rate) {
        const due = Number(began.at) / 1e6 + (index * 1_000) / rate;
        const now = Number(process.hrtime.bigint()) / 1e6;
        if (due > now) await pause(due - now);
      }
      index += 1;
      controller.enqueue(frame(index));
    },
  });
}

let open;
let readers = [];

async function readAll(stream, seen) {
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const now = process.hrtime.bigint();
    for (const [, stamp] of value.matchAll(/@(\d+)@/g)) seen.push(Number(now - BigInt(stamp)) / 1e9);
  }
}

const operations = {
  async open({ id, chunks, rate }) {
    const began = {};
    let go;
    const gate = new Promise(resolve => (go = resolve));
    const stream = await context.createNewResumableStream(id, () => makeSource(gate, { chunks, rate }, began));
    open = { began, go, reading: readAll(stream, []) };
    return {};
  },
  async go() {
    open.go();
    await open.reading;
    return { began: Number(open.began.at) / 1e9, cpu: cpu() - open.began.cpu };
  },
  async attach({ id, count }) {
    const streams = await Promise.all(Array.from({ length: count }, () => context.resumeExistingStream(id)));
    const seen = streams.map(() => []);
    readers = { seen, cpu: cpu(), reading: Promise.all(streams.map((stream, index) => readAll(stream, seen[index]))) };
    return {};
  },
  async read() {
    await readers.reading;
    const ended = Number(process.hrtime.bigint()) / 1e9;
    return { ended, cpu: cpu() - readers.cpu, delays: readers.seen.flat() };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { op, ...request } = JSON.parse(line);
  process.stdout.write(`${JSON.stringify(await operations[op](request))}\n`);
}
process.exit();
