/** What the server said, which some servers wrap in JSON. */
export function messageOf(error: unknown): string {
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
