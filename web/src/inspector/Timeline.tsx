import { type KeyboardEvent, useEffect, useLayoutEffect, useRef, useState } from "react";

import type { RecordedChunk } from "../recording/recorder.ts";
import { time } from "../ui/numbers.ts";
import { kindOf } from "./kinds.ts";

interface Props {
  chunks: RecordedChunk[];
  /** The places of those that are shown; without it all are. */
  places: number[] | undefined;
  selected: number | undefined;
  select: (index: number) => void;
}

const HEIGHT = 28;
const BEYOND = 8;

/** The chunks by time. Only those that can be seen are drawn, since there may be tens of thousands. */
export function Timeline({ chunks, places, selected, select }: Props) {
  const area = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(400);
  const first = Math.max(0, Math.floor(top / HEIGHT) - BEYOND);
  const count = places?.length ?? chunks.length;
  const end = Math.min(count, first + Math.ceil(height / HEIGHT) + 2 * BEYOND);
  const seen = Array.from({ length: Math.max(0, end - first) }, (_, offset) => places?.[first + offset] ?? first + offset);
  const place = selected === undefined ? -1 : (places?.indexOf(selected) ?? selected);

  useLayoutEffect(() => {
    const box = area.current;
    if (box === null) return undefined;
    const watch = new ResizeObserver(() => setHeight(box.clientHeight));
    watch.observe(box);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    if (follows.current && area.current) area.current.scrollTop = area.current.scrollHeight;
  }, [count]);
  useEffect(() => {
    const box = area.current;
    if (box === null || place < 0) return;
    const above = place * HEIGHT < box.scrollTop;
    const below = (place + 1) * HEIGHT > box.scrollTop + box.clientHeight;
    if (above || below) box.scrollTop = (place + 0.5) * HEIGHT - box.clientHeight / 2;
  }, [place]);

  const move = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -count, End: count };
    const step = steps[event.key];
    if (step === undefined || count === 0) return;
    event.preventDefault();
    const to = Math.min(count - 1, Math.max(0, place + step));
    select(places?.[to] ?? to);
  };
  return (
    <>
      <div className="chunk-row head" aria-hidden="true">
        <span className="at">ms</span>
        <span className="gap">gap</span>
        <span className="type">chunk</span>
      </div>
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
        <div role="presentation" style={{ height: count * HEIGHT }}>
          <div role="presentation" style={{ transform: `translateY(${first * HEIGHT}px)` }}>
            {seen.map((index, offset) => (
              <Row key={index} chunks={chunks} index={index} selected={index === selected} select={select} size={count} position={first + offset + 1} />
            ))}
          </div>
        </div>
      </div>
    </>
  );
}

interface RowProps {
  chunks: RecordedChunk[];
  index: number;
  selected: boolean;
  select: (index: number) => void;
  size: number;
  position: number;
}

function Row({ chunks, index, selected, select, size, position }: RowProps) {
  const chunk = chunks[index];
  if (chunk === undefined) return null;
  const gap = chunk.at - (chunks[index - 1]?.at ?? 0);
  return (
    <div
      id={`chunk-${index}`}
      role="option"
      aria-selected={selected}
      aria-setsize={size}
      aria-posinset={position}
      className={`chunk-row kind-${kindOf(chunk.type)}`}
      onClick={() => select(index)}
    >
      <span className="at">{Math.round(chunk.at)}</span>
      <span className={gap > 2000 ? "gap long" : "gap"}>{gap >= 1 ? `+${time(gap)}` : ""}</span>
      <span className="type">{chunk.type}</span>
      <span className="preview">{preview(chunk)}</span>
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
