import { type DynamicToolUIPart, getToolName, type ToolUIPart } from "ai";

import { Fold, Json } from "../react.ts";
import { Icon } from "../ui/icons.tsx";
import { Approval } from "./Approval.tsx";
import { BrowserTool } from "./BrowserTool.tsx";

export type ToolPart = ToolUIPart | DynamicToolUIPart;

export interface ToolAnswers {
  approve: (id: string, approved: boolean, reason: string | undefined) => void;
  output: (tool: string, callId: string, output: unknown) => void;
  fail: (tool: string, callId: string, text: string) => void;
}

interface Props {
  part: ToolPart;
  /** Whether the agent is working. Otherwise a call without a result waits for the browser. */
  live: boolean;
  /** Whether the user can still answer it. */
  open: boolean;
  answers: ToolAnswers;
}

const WORDS: Record<ToolPart["state"], [string, "busy" | "wait" | "good" | "bad"]> = {
  "input-streaming": ["Preparing", "busy"],
  "input-available": ["Running", "busy"],
  "approval-requested": ["Needs approval", "wait"],
  "approval-responded": ["Answered", "busy"],
  "output-available": ["Done", "good"],
  "output-error": ["Failed", "bad"],
  "output-denied": ["Denied", "bad"],
};

/** Whether the browser has to give the result of a call, if the agent is not working. */
export const isLeftToBrowser = (part: ToolPart): boolean => part.state === "input-available" && part.providerExecuted !== true;

/** A tool call: its input as it streams, what it waits for, and its result. */
export function Tool({ part, live, open, answers }: Props) {
  const name = getToolName(part);
  const waits = isLeftToBrowser(part) && !live;
  const [word, tone] = describe(part, waits, live, open);
  const asks = open && (part.state === "approval-requested" || waits);
  return (
    <Fold
      className={`tool ${tone}`}
      open={asks || part.state === "input-streaming" || part.state === "output-error"}
      summary={
        <>
          <Icon name="tool" />
          <b dir="auto">{part.title ?? name}</b>
          <span className="preview" dir="auto">
            {preview(part.input)}
          </span>
          <span className={`badge ${tone}`}>{word}</span>
        </>
      }
    >
      <Details part={part} />
      {open && part.state === "approval-requested" && (
        <Approval asks={part.approval.requestReason} answer={(approved, reason) => answers.approve(part.approval.id, approved, reason)} />
      )}
      {open && waits && (
        <BrowserTool
          output={(value) => answers.output(name, part.toolCallId, value)}
          fail={(text) => answers.fail(name, part.toolCallId, text)}
        />
      )}
    </Fold>
  );
}

function describe(part: ToolPart, waits: boolean, live: boolean, open: boolean): [string, string] {
  if (waits) return open ? ["Waits for you", "wait"] : ["No result", "bad"];
  if (part.state === "approval-responded") return [part.approval.approved ? "Approved" : "Denied", part.approval.approved ? "good" : "bad"];
  if (part.state === "output-available" && part.preliminary) return ["In progress", "busy"];
  if (part.state === "input-streaming" && !live) return ["Not finished", "bad"];
  return WORDS[part.state];
}

function Details({ part }: { part: ToolPart }) {
  const raw = "rawInput" in part ? part.rawInput : undefined;
  const input = part.input ?? raw;
  const reason = "approval" in part ? part.approval?.reason : undefined;
  return (
    <div className="tool-body">
      {input !== undefined && <Value label="Input" value={input} />}
      {part.state === "output-available" && <Value label={part.preliminary ? "Output so far" : "Output"} value={part.output} />}
      {part.state === "output-error" && <Value label="Error" value={part.errorText} />}
      {reason !== undefined && <Value label="Your reason" value={reason} />}
    </div>
  );
}

function Value({ label, value }: { label: string; value: unknown }) {
  return (
    <div>
      <p className="label">{label}</p>
      <Json value={value} label={label} />
    </div>
  );
}

function preview(input: unknown): string {
  if (input === undefined || input === null) return "";
  if (typeof input !== "object") return String(input);
  const values = Object.values(input).map((value) => (typeof value === "string" ? value : JSON.stringify(value)));
  return values.join(", ").slice(0, 120);
}
