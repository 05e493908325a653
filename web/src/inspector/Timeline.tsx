import { type KeyboardEvent, useEffect, useLayoutEffect, useRef, useState } from "react";

import type { RecordedChunk } from "../recording/recorder.ts";
import { time } from "../ui/numbers.ts";
import { kindOf } from "./kinds.ts";

export interface Row {
  /** The chunk's place in the stream. */
  index: number;
  chunk: RecordedChunk;
  gap: number;
}

interface Props {
  rows: Row[];
  selected: number | undefined;
  select: (index: number) => void;
}

const HEIGHT = 28;
const BEYOND = 8;

/** The chunks by time. Only those that can be seen are drawn, since there may be tens of thousands. */
export function Timeline({ rows, selected, select }: Props) {
  const area = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(400);
  const first = Math.max(0, Math.floor(top / HEIGHT) - BEYOND);
  const seen = rows.slice(first, first + Math.ceil(height / HEIGHT) + 2 * BEYOND);
  const place = rows.findIndex(({ index }) => index === selected);

  useLayoutEffect(() => {
    const box = area.current;
    if (box === null) return undefined;
    const watch = new ResizeObserver(() => setHeight(box.clientHeight));
    watch.observe(box);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    if (follows.current && area.current) area.current.scrollTop = area.current.scrollHeight;
  }, [rows.length]);
  useEffect(() => {
    const box = area.current;
    if (box === null || place < 0) return;
    const above = place * HEIGHT < box.scrollTop;
    const below = (place + 1) * HEIGHT > box.scrollTop + box.clientHeight;
    if (above || below) box.scrollTop = (place + 0.5) * HEIGHT - box.clientHeight / 2;
  }, [place]);

  const move = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -rows.length, End: rows.length };
    const step = steps[event.key];
    if (step === undefined || rows.length === 0) return;
    event.preventDefault();
    const to = rows[Math.min(rows.length - 1, Math.max(0, place + step))];
    if (to) select(to.index);
  };
  return (
    <div
      ref={area}
      className="timeline"
      role="listbox"
      aria-label="Chunks"
      tabIndex={0}
      aria-activedescendant={place >= 0 ? `chunk-${selected}` : undefined}
      onKeyDown={move}
      onScroll={({ currentTarget: box }) => {
        setTop(box.scrollTop);
        follows.current = box.scrollHeight - box.scrollTop - box.clientHeight < HEIGHT;
      }}
    >
      <div role="presentation" style={{ height: rows.length * HEIGHT }}>
        <div role="presentation" style={{ transform: `translateY(${first * HEIGHT}px)` }}>
          {seen.map(({ index, chunk, gap }, offset) => (
            <div
              key={index}
              id={`chunk-${index}`}
              role="option"
              aria-selected={index === selected}
              aria-setsize={rows.length}
              aria-posinset={first + offset + 1}
              className={`chunk-row kind-${kindOf(chunk.type)}`}
              onClick={() => select(index)}
            >
              <span className="at">{Math.round(chunk.at)}</span>
              <span className={gap > 2000 ? "gap long" : "gap"}>{gap >= 1 ? `+${time(gap)}` : ""}</span>
              <span className="type">{chunk.type}</span>
              <span className="preview">{preview(chunk)}</span>
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}

/** What tells chunks of a type apart: their text, else their fields. */
function preview({ data }: RecordedChunk): string {
  try {
    const { type: _type, id: _id, ...rest } = JSON.parse(data) as Record<string, unknown>;
    const said = rest.delta ?? rest.inputTextDelta ?? rest.errorText;
    return (typeof said === "string" ? said : Object.keys(rest).length > 0 ? JSON.stringify(rest) : "").slice(0, 120);
  } catch {
    return data.slice(0, 120);
  }
}
