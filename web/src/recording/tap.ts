/** The fetch of a chat whose streams are recorded. */
import type { UIMessage } from "ai";

import type { Recorder, Turn } from "./recorder.ts";

interface Posted {
  id: string;
  trigger?: string;
  message?: UIMessage;
  messages?: UIMessage[];
}

/** A `fetch` that records answers and resumed streams, and calls `onTurn` for each turn that begins. */
export function tapped(api: string, recorder: Recorder, base: typeof fetch, onTurn: (turn: Turn) => void): typeof fetch {
  return async (input, init) => {
    const url = new URL(input instanceof Request ? input.url : input, location.href);
    const cut = interrupted(api, recorder, url);
    if (cut !== undefined) return readOn(cut, recorder, await base(input, init));
    const turn = recorded(api, recorder, url, init);
    if (turn === undefined) return base(input, init);
    const response = await base(input, init).catch((error: unknown) => {
      turn.ended = true;
      recorder.changed();
      throw error;
    });
    turn.status = response.status;
    turn.id = response.headers.get("x-usechat-turn") ?? undefined;
    if (!response.ok || response.body === null || response.status === 204) {
      turn.ended = true;
      if (turn.kind === "resumed") recorder.forget(turn);
      recorder.changed();
      return response;
    }
    onTurn(turn);
    return tapping(turn, recorder, response);
  };
}

function tapping(turn: Turn, recorder: Recorder, { body, status, headers }: Response): Response {
  return new Response(body && recorder.tap(turn, body), { status, headers });
}

/** After a lost connection, the stream belongs to the turn that lost it. */
function readOn(turn: Turn, recorder: Recorder, response: Response): Response {
  const isSame = response.status === 200 && response.headers.get("x-usechat-turn") === turn.id;
  return isSame ? tapping(turn, recorder, response) : response;
}

function interrupted(api: string, recorder: Recorder, url: URL): Turn | undefined {
  const after = url.searchParams.get("after");
  const chatId = resumedChat(api, url);
  return after === null || chatId === undefined ? undefined : recorder.interrupted(chatId, after);
}

/** The chat whose stream this address resumes. */
function resumedChat(api: string, { pathname }: URL): string | undefined {
  const path = `${new URL(api, location.href).pathname}/`;
  const end = "/stream";
  if (!pathname.startsWith(path) || !pathname.endsWith(end)) return undefined;
  return decodeURIComponent(pathname.slice(path.length, -end.length));
}

/** The message that an answer continues: the assistant's message, if one was sent. */
export const continuedBy = (message: UIMessage | undefined) => (message?.role === "assistant" ? message : undefined);

function recorded(api: string, recorder: Recorder, url: URL, init: RequestInit | undefined): Turn | undefined {
  const path = new URL(api, location.href).pathname;
  if (init?.method === "POST" && url.pathname === path && typeof init.body === "string") {
    const posted = JSON.parse(init.body) as Posted;
    const last = posted.message ?? posted.messages?.at(-1);
    const request = { url: url.href, body: init.body };
    return recorder.begin({ chatId: posted.id, kind: "asked", request, continues: continuedBy(last) });
  }
  const chatId = resumedChat(api, url);
  if (chatId === undefined) return undefined;
  return recorder.begin({ chatId, kind: "resumed", request: { url: url.href, body: "" }, continues: undefined });
}
