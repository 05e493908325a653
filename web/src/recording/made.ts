/** Which part of the message a chunk made or changed. */
import type { UIMessage } from "ai";

import type { Turn } from "./recorder.ts";

interface WireChunk {
  type: string;
  id?: string;
  toolCallId?: string;
  approvalId?: string;
  messageId?: string;
  transient?: boolean;
}

const WITHOUT_ID = new Set(["file", "reasoning-file", "source-url", "source-document", "custom", "steering-message"]);

/** The index of the part in the message, or undefined for a chunk that makes no part. */
export function partIndex(turn: Turn, upTo: number): number | undefined {
  let count = turn.continues?.parts.length ?? 0;
  const places = new Map<string, number>();
  turn.continues?.parts.forEach((part, index) => {
    if ("toolCallId" in part) places.set(`tool ${part.toolCallId}`, index);
  });
  let made: number | undefined;
  for (const { data } of turn.chunks.slice(0, upTo + 1)) {
    const chunk = JSON.parse(data) as WireChunk;
    const key = keyOf(chunk);
    made = undefined;
    if (key === undefined) continue;
    const begins = key === "" || chunk.type.endsWith("-start") || !places.has(key);
    if (begins && !(chunk.type === "tool-input-start" && places.has(key))) places.set(key, count++);
    made = places.get(key);
  }
  return made;
}

function keyOf(chunk: WireChunk): string | undefined {
  const { type } = chunk;
  if (type === "start-step" || WITHOUT_ID.has(type)) return "";
  if (chunk.toolCallId !== undefined) return `tool ${chunk.toolCallId}`;
  if (type.startsWith("data-")) return chunk.transient ? undefined : chunk.id === undefined ? "" : `${type} ${chunk.id}`;
  if (type.startsWith("text-") || type.startsWith("reasoning-")) return `${type.split("-")[0]} ${chunk.id}`;
  return undefined;
}

/** The id of the message that the turn writes. */
export function messageId(turn: Turn): string | undefined {
  const start = turn.chunks.find((chunk) => chunk.type === "start");
  return start ? (JSON.parse(start.data) as WireChunk).messageId : undefined;
}

export function partMade(turn: Turn, index: number, messages: UIMessage[]): unknown {
  try {
    const place = partIndex(turn, index);
    const message = messages.find(({ id }) => id === messageId(turn));
    return place === undefined ? undefined : message?.parts[place];
  } catch {
    return undefined;
  }
}
