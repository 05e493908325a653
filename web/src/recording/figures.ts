/** How fast a stream came, and whether something held it up. */
import type { Turn } from "./recorder.ts";

export interface Figures {
  firstByte: number | undefined;
  firstText: number | undefined;
  longestGap: number;
  /** Chunks a second, from the first to the last. */
  rate: number | undefined;
  /** How many chunks came at once, late, with the one that is sent at once among them. */
  burst: number | undefined;
}

// A server sends `start` as soon as the turn begins. Where it comes late, and with many others, somebody kept them.
const LATE = 700;
const MANY = 10;
const TOGETHER = 25;

export function figures(turn: Turn): Figures {
  const { chunks } = turn;
  const first = chunks[0];
  const last = chunks.at(-1);
  const gaps = chunks.map((chunk, index) => chunk.at - (chunks[index - 1]?.at ?? 0));
  const seconds = first && last ? (last.at - first.at) / 1000 : 0;
  return {
    firstByte: turn.firstByte,
    firstText: chunks.find((chunk) => chunk.type === "text-delta")?.at,
    longestGap: gaps.reduce((most, gap) => Math.max(most, gap), 0),
    rate: seconds > 0.05 ? (chunks.length - 1) / seconds : undefined,
    burst: turn.kind === "asked" && first && first.at > LATE ? burst(gaps) : undefined,
  };
}

function burst(gaps: number[]): number | undefined {
  const end = gaps.findIndex((gap, index) => index > 0 && gap > TOGETHER);
  const together = end === -1 ? gaps.length : end;
  return together >= MANY ? together : undefined;
}
