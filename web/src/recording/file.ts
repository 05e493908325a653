/** Recordings as files: one line with the request, then one line with its time for each chunk. */
import type { UIMessage } from "ai";

import type { Turn } from "./recorder.ts";

export interface RecordedEvent {
  /** Milliseconds since the request was sent. */
  at: number;
  data: string;
}

export interface Recording {
  /** The body that was posted, or null for a stream that was read on. */
  request: { message?: UIMessage; messages?: UIMessage[] } | null;
  continues: UIMessage | null;
  events: RecordedEvent[];
}

interface Head {
  usechat: "recording";
  request: Recording["request"];
  continues: UIMessage | null;
}

/** A line of the file: JSON stays JSON, anything else is text. */
type Line = { at: number; chunk: unknown } | { at: number; data: string };

export function fileOf(turn: Turn): Blob {
  const request = turn.request.body === "" ? null : (JSON.parse(turn.request.body) as Recording["request"]);
  const head: Head = { usechat: "recording", request, continues: turn.continues ?? null };
  const lines = turn.chunks.map(({ at, data }): Line => ({ at: Math.round(at * 10) / 10, ...valueOf(data) }));
  return new Blob([[head, ...lines].map((line) => `${JSON.stringify(line)}\n`).join("")], { type: "application/jsonl" });
}

function valueOf(data: string): { chunk: unknown } | { data: string } {
  try {
    return { chunk: JSON.parse(data) as unknown };
  } catch {
    return { data };
  }
}

/** Whether to play a file that is dropped on the page, and not to send it. */
export const isRecording = ({ name }: File): boolean => name.endsWith(".jsonl");

/** Reads a file. Throws an error with a sentence for the user if it is not a recording. */
export async function readRecording(file: Blob): Promise<Recording> {
  const [head, ...lines] = (await file.text()).split("\n").filter((line) => line.trim() !== "");
  try {
    const { usechat, request = null, continues = null } = JSON.parse(head ?? "") as Partial<Head>;
    const messages = [continues, request?.message, ...(request?.messages ?? [])].filter((message) => message != null);
    if (usechat !== "recording" || typeof request !== "object" || !messages.every(isMessage)) throw new Error();
    const events = lines.map((line) => {
      const { at, ...what } = JSON.parse(line) as Line;
      const data = "chunk" in what ? JSON.stringify(what.chunk) : what.data;
      if (typeof at !== "number" || typeof data !== "string") throw new Error();
      return { at, data };
    });
    return { request, continues, events };
  } catch {
    throw new Error("This file is not a recording of a turn.");
  }
}

function isMessage(given: unknown): given is UIMessage {
  const { id, role, parts } = given as Partial<UIMessage>;
  return typeof id === "string" && typeof role === "string" && Array.isArray(parts) && parts.every((part) => typeof part?.type === "string");
}

/** Saves a turn as a file. */
export function download(turn: Turn): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(fileOf(turn));
  link.download = `usechat-${turn.chatId}-${turn.key + 1}.jsonl`;
  link.click();
  URL.revokeObjectURL(link.href);
}
