/** The server's judgement on a recorded stream. */
import type { Turn } from "../recording/recorder.ts";
import { signedFetch } from "../session.ts";

export interface Violation {
  level: "refused" | "untidy";
  line: number;
  chunk: string;
  rule: string;
  problem: string;
  remedy: string;
}

export interface Verdict {
  level: "accepted" | "untidy" | "refused";
  chunks: number;
  /** The first release of each major version that accepts the stream. */
  clients: string[];
  violations: Violation[];
}

const LARGEST = 3_500_000;
const known = new WeakMap<Turn, { chunks: number; verdict: Promise<Verdict> }>();

/** Asks once for each turn that is over, and again if it continued after a lost connection. */
export function verdictOf(turn: Turn, client: string): Promise<Verdict> {
  const before = known.get(turn);
  if (before?.chunks === turn.chunks.length) return before.verdict;
  const verdict = ask(turn, client);
  known.set(turn, { chunks: turn.chunks.length, verdict });
  return verdict;
}

async function ask(turn: Turn, client: string): Promise<Verdict> {
  // Two lines per chunk, so that `chunkOf` can find the chunk of a line.
  const recording = turn.chunks.map(({ data }) => `data: ${data.replaceAll("\n", " ")}\n\n`).join("");
  if (recording.length > LARGEST) throw new Error("The stream is too long to be checked here.");
  const response = await signedFetch("page/check", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ recording, client, continues: turn.continues ?? null }),
  });
  if (!response.ok) throw new Error(await response.text());
  return (await response.json()) as Verdict;
}

/** The chunk that a line of the recording holds. */
export function chunkOf(violation: Violation): number {
  return Math.floor((violation.line - 1) / 2);
}
