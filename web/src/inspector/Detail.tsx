import type { UIMessage } from "ai";

import { Json } from "../react.ts";
import { partMade } from "../recording/made.ts";
import type { Turn } from "../recording/recorder.ts";
import { Icon } from "../ui/icons.tsx";

interface Props {
  turn: Turn;
  index: number;
  messages: UIMessage[];
  close: () => void;
}

/** One chunk: as JSON, as it came, and the part of the message that it made. */
export function Detail({ turn, index, messages, close }: Props) {
  const chunk = turn.chunks[index];
  if (chunk === undefined) return null;
  const part = partMade(turn, index, messages);
  return (
    <section className="detail" aria-label="Chunk">
      <h3>
        <span>
          {chunk.type} <span className="muted">{index + 1}</span>
        </span>
        <button type="button" className="button quiet" aria-label="Close the chunk" onClick={close}>
          <Icon name="close" />
        </button>
      </h3>
      <p className="label">JSON</p>
      <Json value={parsed(chunk.data)} label="JSON" />
      <p className="label">Raw</p>
      <Json value={chunk.raw} label="Raw" />
      {part !== undefined && (
        <>
          <p className="label">The part it made</p>
          <Json value={part} label="The part it made" />
        </>
      )}
    </section>
  );
}

function parsed(data: string): unknown {
  try {
    return JSON.parse(data);
  } catch {
    return data;
  }
}
