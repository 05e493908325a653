/** The bearer token of this tab, and the fetch that sends it. */

const KEY = "usechat-token";

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value: string) => sessionStorage.setItem(KEY, value),
};

const listeners = new Set<() => void>();

/** Calls back when the server asks for a sign-in; the value takes the callback away. */
export function onSignedOut(callback: () => void): () => void {
  listeners.add(callback);
  return () => listeners.delete(callback);
}

/** The headers that say who asks. */
export const signature = (): Record<string, string> => (token.get() ? { authorization: `Bearer ${token.get()}` } : {});

/** `fetch` with the token, if there is one. */
export const signedFetch: typeof fetch = async (input, init) => {
  let response = await send(input, init);
  // A server that signs its pages in by itself, and was started again, knows this one when it has asked for the settings.
  if (response.status === 401 && (await isKnown())) response = await send(input, init);
  if (response.status === 401) listeners.forEach((callback) => callback());
  return response;
};

async function isKnown(): Promise<boolean> {
  const response = await send("page/settings");
  return response.ok && ((await response.json()) as { signedIn: boolean }).signedIn;
}

function send(input: RequestInfo | URL, init?: RequestInit): Promise<Response> {
  const headers = new Headers(init?.headers);
  Object.entries(signature()).forEach(([name, value]) => headers.set(name, value));
  return fetch(input, { ...init, headers });
}
