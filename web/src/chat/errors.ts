// For an unknown chunk, the client's error describes every chunk that it knows.
const LONGEST = 300;

/** What the server said, in at most 300 characters. */
export function messageOf(error: unknown): string {
  const text = said(error);
  return text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
}

/** The text of the error. Some servers wrap it in JSON. */
function said(error: unknown): string {
  // Each browser has its own words for a request that reached no server.
  if (error instanceof TypeError) return "The server could not be reached.";
  const text = error instanceof Error ? error.message : "";
  try {
    const message = (JSON.parse(text) as { error?: unknown } | null)?.error;
    return typeof message === "string" ? message : text;
  } catch {
    return text || "Something went wrong.";
  }
}
