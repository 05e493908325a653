import { useEffect, useState } from "react";

import type { Turn } from "../recording/recorder.ts";
import { chunkOf, type Verdict, verdictOf } from "./verdict.ts";

interface Props {
  turn: Turn;
  client: string;
  select: (chunk: number) => void;
}

/** What the clients make of the stream. */
export function VerdictView({ turn, client, select }: Props) {
  const [verdict, setVerdict] = useState<Verdict>();
  const [problem, setProblem] = useState("");
  const isOver = turn.ended && turn.chunks.length > 0;
  useEffect(() => {
    if (!isOver) return;
    verdictOf(turn, client).then(setVerdict, (error: unknown) => setProblem(error instanceof Error ? error.message : ""));
  }, [turn, client, isOver]);
  if (problem) return <p className="muted">{problem}</p>;
  if (verdict === undefined) return <p className="muted">{turn.ended ? "Nothing to check." : "Checked when it is over."}</p>;
  return (
    <section aria-label="Protocol check">
      <p className="verdict">
        <span className={`badge ${{ accepted: "good", untidy: "wait", refused: "bad" }[verdict.level]}`}>{verdict.level}</span>
        {verdict.level !== "refused" && <span>by ai {verdict.clients.map((release) => `${release}+`).join(", ")}</span>}
      </p>
      {verdict.violations.map((violation, index) => (
        <div key={index} className="violation">
          <p>{violation.problem}</p>
          <dl>
            <dt>Rule</dt>
            <dd>
              <code>{violation.rule}</code>
            </dd>
            <dt>Remedy</dt>
            <dd>{violation.remedy}</dd>
          </dl>
          <button type="button" className="button small" onClick={() => select(chunkOf(violation))}>
            Show the chunk
          </button>
        </div>
      ))}
    </section>
  );
}
