/** The bearer token of this tab, and the fetch that sends it. */

const KEY = "usechat-token";

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value: string) => sessionStorage.setItem(KEY, value),
};

const listeners = new Set<() => void>();

/** Calls back when the server asks for a sign-in. The returned function removes the callback. */
export function onSignedOut(callback: () => void): () => void {
  listeners.add(callback);
  return () => listeners.delete(callback);
}

/** The headers that identify the user. */
export const signature = (): Record<string, string> => (token.get() ? { authorization: `Bearer ${token.get()}` } : {});

/** `fetch` with the token, if there is one. */
export const signedFetch: typeof fetch = async (input, init) => {
  let response = await send(input, init);
  // A server that signs in its pages itself, and has restarted, sets its cookie with the settings.
  if (response.status === 401 && (await isKnown())) response = await send(input, init);
  if (response.status === 401) listeners.forEach((callback) => callback());
  return (await isFromServer(response)) ? response : notFound(response.url);
};

/** Whether a response comes from the server. A proxy that does not know the address answers with a page, or with no sentence. */
async function isFromServer(response: Response): Promise<boolean> {
  if (response.headers.get("content-type")?.includes("html") && (response.ok || response.status === 404)) return false;
  return response.status !== 404 || /\.\s*$|"error"/.test(await response.clone().text());
}

function notFound(url: string): Response {
  const sentence = `The server was not found at ${new URL(url).pathname}. A proxy in front of it must pass on all paths below that of the page.`;
  return new Response(sentence, { status: 404 });
}

async function isKnown(): Promise<boolean> {
  const response = await send("page/settings");
  return response.ok && ((await response.json()) as { signedIn: boolean }).signedIn;
}

function send(input: RequestInfo | URL, init?: RequestInit): Promise<Response> {
  const headers = new Headers(init?.headers);
  Object.entries(signature()).forEach(([name, value]) => headers.set(name, value));
  return fetch(input, { ...init, headers });
}
