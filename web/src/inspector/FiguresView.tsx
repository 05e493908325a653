import { figures } from "../recording/figures.ts";
import type { Turn } from "../recording/recorder.ts";
import { Icon } from "../ui/icons.tsx";
import { count, time } from "../ui/numbers.ts";

export function FiguresView({ turn }: { turn: Turn }) {
  const { firstByte, firstText, longestGap, rate, burst } = figures(turn);
  const rows: [string, string][] = [
    ["First byte", time(firstByte)],
    ["First text", time(firstText)],
    ["Longest gap", time(longestGap)],
    ["Chunks", count(turn.chunks.length)],
    ["Chunks/s", rate === undefined ? "–" : count(Math.round(rate))],
    ["Bytes", count(turn.bytes)],
    ...(turn.connections > 1 ? ([["Connections", count(turn.connections)]] as [string, string][]) : []),
  ];
  return (
    <>
      <dl className="figures">
        {rows.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {burst !== undefined && (
        <p className="notice wait">
          <Icon name="alert" />
          <span>{count(burst)} chunks in one burst: something in between buffers.</span>
        </p>
      )}
    </>
  );
}
