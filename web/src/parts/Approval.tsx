import { useState } from "react";

interface Props {
  /** Why the agent asks, if it said so. */
  asks: string | undefined;
  answer: (approved: boolean, reason: string | undefined) => void;
}

/** Lets a call happen or not, at once; a reason may go with it. */
export function Approval({ asks, answer }: Props) {
  const [reason, setReason] = useState("");
  const give = (approved: boolean) => answer(approved, reason.trim() || undefined);
  return (
    <div className="approval" role="group" aria-label="Approval">
      <p dir="auto">{asks ?? "May the agent do this?"}</p>
      <div className="row">
        <button type="button" className="button primary" onClick={() => give(true)}>
          Approve
        </button>
        <button type="button" className="button" onClick={() => give(false)}>
          Deny
        </button>
        <input
          className="field"
          aria-label="Reason"
          placeholder="Reason, if there is one"
          value={reason}
          onChange={(event) => setReason(event.target.value)}
          dir="auto"
        />
      </div>
    </div>
  );
}
