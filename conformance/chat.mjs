import { setImmediate as turn } from 'node:timers/promises';

export const json = value => JSON.parse(JSON.stringify(value));

// A copy of the state in @ai-sdk/react (2.0.0 to 4.0.167). That `replaceMessage` clones is visible: a chunk after which
// the client does not write (`start-step`, `finish`) reaches the page only with the next chunk that does.
export class PageState {
  status = 'ready';
  error = undefined;

  constructor(messages) {
    this.messages = messages;
  }

  pushMessage = message => {
    this.messages = this.messages.concat(message);
  };

  popMessage = () => {
    this.messages = this.messages.slice(0, -1);
  };

  replaceMessage = (index, message) => {
    this.messages = this.messages.with(index, this.snapshot(message));
  };

  snapshot = value => structuredClone(value);
}

function splitEvents(sse) {
  const events = sse.split('\n\n');
  const unterminated = events.pop();
  return [...events.map(event => `${event}\n\n`), ...(unterminated ? [unterminated] : [])];
}

const carriesChunk = event => event.endsWith('\n\n') && /^data:(?! ?\[DONE\]$)/m.test(event);

// One event at a time. The clients work in microtasks only (the partial parse of a tool's input too), so that one turn
// of the event loop later the event has had its whole effect.
function bodyOf(sse, onChunkConsumed) {
  const encoder = new TextEncoder();
  const events = splitEvents(sse);
  let fed = 0;
  let cancelled = false;
  return new ReadableStream(
    {
      async pull(controller) {
        await turn();
        if (cancelled) return;
        if (fed > 0 && carriesChunk(events[fed - 1])) onChunkConsumed();
        if (fed === events.length) controller.close();
        else controller.enqueue(encoder.encode(events[fed++]));
      },
      cancel() {
        cancelled = true;
      },
    },
    { highWaterMark: 0 },
  );
}

/** Plays one page: a chat that posts once (or as often as `resubmitWhen` says), each time answered with `sse`. */
export async function converse(ai, { sse, continues, resubmitWhen, onChunkConsumed = () => {} }) {
  class Chat extends ai.AbstractChat {}
  const seen = { posts: 0, toolCalls: [], data: [], finish: null, streaming: null };
  let ids = 0;
  const history = continues
    ? [{ id: 'user', role: 'user', parts: [{ type: 'text', text: 'hi' }] }, structuredClone(continues)]
    : [];
  const chat = new Chat({
    id: 'chat',
    generateId: () => `generated-${++ids}`,
    state: new PageState(history),
    transport: new ai.DefaultChatTransport({
      fetch: async () => {
        seen.posts++;
        seen.streaming = chat.activeResponse.state;
        return new Response(bodyOf(sse, () => onChunkConsumed(seen.streaming.message)));
      },
    }),
    onToolCall: ({ toolCall }) => void seen.toolCalls.push(toolCall.toolCallId),
    onData: part => void seen.data.push(json(part)),
    onFinish: ({ isAbort, isError, isDisconnect, finishReason }) => {
      seen.finish = { isAbort, isError, isDisconnect, finishReason };
    },
    sendAutomaticallyWhen: resubmitWhen && (({ messages }) => resubmitWhen(messages, seen.posts)),
  });
  await chat.sendMessage(continues ? undefined : { text: 'hi' });
  return { chat, ...seen };
}
