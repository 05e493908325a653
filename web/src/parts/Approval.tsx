import { useState } from "react";

interface Props {
  /** The agent's reason, if it gave one. */
  asks: string | undefined;
  answer: (approved: boolean, reason: string | undefined) => void;
}

/** Approves or denies a call. The user may add a reason. */
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
