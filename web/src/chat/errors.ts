// The client tells at length, of a chunk that it does not know, what each of the others looks like.
const LONGEST = 300;

/** What the server said, in so many characters. */
export function messageOf(error: unknown): string {
  const text = said(error);
  return text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
}

/** Some servers wrap it in JSON. */
function said(error: unknown): string {
  // What browsers say of a request that reached nobody, each in its own words.
  if (error instanceof TypeError) return "The server could not be reached.";
  const text = error instanceof Error ? error.message : "";
  try {
    const told = (JSON.parse(text) as { error?: unknown } | null)?.error;
    return typeof told === "string" ? told : text;
  } catch {
    return text || "Something went wrong.";
  }
}
