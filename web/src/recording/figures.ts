/** How fast a stream came, and whether something held it up. */
import type { RecordedChunk, Turn } from "./recorder.ts";

export interface Figures {
  firstByte: number | undefined;
  firstText: number | undefined;
  longestGap: number;
  /** Chunks a second, from the first to the last. */
  rate: number | undefined;
  /** How many chunks came late and together, with the `start` that servers send at once among them. */
  burst: number | undefined;
}

// A server sends `start` as soon as the turn begins. If it comes late and with many others, a proxy buffered them.
const LATE = 700;
const MANY = 10;
const TOGETHER = 25;

export function figures(turn: Turn): Figures {
  const { chunks } = turn;
  const first = chunks[0];
  const last = chunks.at(-1);
  const seconds = first && last ? (last.at - first.at) / 1000 : 0;
  let longestGap = 0;
  let before = 0;
  for (const { at } of chunks) {
    longestGap = Math.max(longestGap, at - before);
    before = at;
  }
  return {
    firstByte: turn.firstByte,
    firstText: chunks.find((chunk) => chunk.type === "text-delta")?.at,
    longestGap,
    rate: seconds > 0.05 ? (chunks.length - 1) / seconds : undefined,
    burst: turn.kind === "asked" && first && first.at > LATE ? burst(chunks) : undefined,
  };
}

function burst(chunks: RecordedChunk[]): number | undefined {
  const end = chunks.findIndex(({ at }, index) => at - (chunks[index - 1]?.at ?? at) > TOGETHER);
  const together = end === -1 ? chunks.length : end;
  return together >= MANY ? together : undefined;
}
