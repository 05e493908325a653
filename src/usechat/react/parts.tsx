// Components for the data parts of useChat() messages, for AI SDK 5, 6 and 7: todos, files, commands, the web, sub-agents, flows and
// questions. `usechat react --parts` printed it; it is yours to change.
//
//   <PartStyles />   once in the app, and for each message:
//   {message.parts.map((part, index) => <DataPart key={index} part={part} live={isRunning} answer={answer} />)}
import { type ReactNode, useId, useState } from "react";

// begin: deep-agent

export type DeepAgentStepCall = { toolName: string; args?: unknown; result?: unknown };

export type DeepAgentTodo = { id?: string; content: string; status: "pending" | "in_progress" | "completed" | "cancelled" };

export type DeepAgentSubAgentCall = { toolCallId: string; toolName: string; state: "streaming" | "running" | "done" | "failed" };

export type DeepAgentSideEvents = {
  "todos-changed": { toolCallId?: string; todos: DeepAgentTodo[] };
  "file-write-start": { toolCallId?: string; path: string; content: string; truncated?: boolean };
  "file-written": { toolCallId?: string; path: string; content: string; truncated?: boolean };
  "file-edited": { toolCallId?: string; path: string; occurrences: number };
  "file-read": { toolCallId?: string; path: string; lines: number };
  ls: { toolCallId?: string; path: string; count: number };
  glob: { toolCallId?: string; pattern: string; count: number };
  grep: { toolCallId?: string; pattern: string; count: number };
  "execute-start": { toolCallId?: string; command: string; sandboxId?: string };
  "execute-finish": { toolCallId?: string; command: string; exitCode: number | null; truncated: boolean; sandboxId?: string };
  "web-search-start": { toolCallId?: string; query: string };
  "web-search-finish": { toolCallId?: string; query: string; resultCount: number };
  "http-request-start": { toolCallId?: string; url: string; method: string };
  "http-request-finish": { toolCallId?: string; url: string; statusCode: number };
  "fetch-url-start": { toolCallId?: string; url: string };
  "fetch-url-finish": { toolCallId?: string; url: string; success: boolean };
  "subagent-start": { toolCallId?: string; name: string; task: string };
  "subagent-finish": { toolCallId?: string; name: string; result: string };
  "subagent-step": { toolCallId?: string; stepIndex: number; toolCalls: DeepAgentStepCall[] };
  "checkpoint-saved": { threadId: string; step: number };
  "checkpoint-loaded": { threadId: string; step: number; messagesCount: number };
};

export type DeepAgentSideEvent = {
  [Name in keyof DeepAgentSideEvents]: { type: Name } & DeepAgentSideEvents[Name];
}[keyof DeepAgentSideEvents];

/** Each data part by its name: `data-ls` has the data of `ls`. Some are only given to `onData`, and not kept. */
export type DeepAgentDataParts = DeepAgentSideEvents & {
  "approval-requested": { approvalId: string; toolCallId: string };
  "approval-response": { approvalId: string; approved: boolean; toolCallId: string };
  subagent: { id: string; name: string; status: "running" | "done" | "failed" | "waiting"; text: string; reasoning?: string; tools: DeepAgentSubAgentCall[]; toolCallId?: string; parent?: string };
  interrupt: { id: string; value: unknown };
  /** Several side events in one part, where they are put together. */
  batch: { events: DeepAgentSideEvent[] };
  /** The structured output of the run. */
  output: unknown;
  /** What a node of a graph wrote, if that was no data part itself. */
  custom: unknown;
};

// end

/** The data parts that this file can draw, for `UIMessage<unknown, UsechatDataParts>`. */
export type UsechatDataParts = DeepAgentDataParts & {
  /** What the agent of a session does, or its `position` in the queue. */
  "agent-status": { status: string; detail?: string; position?: number };
  "agent-error": { nodeId?: string; message: string };
  /** An event of a flow, such as the edge from one node to the next. */
  "flow-event": { type: string; from?: string; to?: string };
  "flow-status": { status: "running" | "paused" | "complete" | "failed" | "aborted"; flowName: string };
  node: { nodeId: string; runId?: string; status: "running" | "complete" | "failed" | "skipped"; reason?: string };
  question: { questionId: string; state: "open" | "answered" | "expired"; text: string; options?: string[]; answer?: string | boolean };
  todos: { todos: DeepAgentTodo[] };
};

/** Takes the answer to a question: a text, or yes or no. */
export type AnswerQuestion = (questionId: string, answer: string | boolean) => void;

type Name = keyof UsechatDataParts;
type Views = { [N in Name]?: (given: { data: UsechatDataParts[N]; answer: AnswerQuestion; live: boolean }) => ReactNode };
type Lines = { [N in Name]?: Line<UsechatDataParts[N]> };
/** An event in one line, and the details below it. */
type Line<Data> = { icon: IconName; says: (event: Data) => ReactNode; more?: (event: Data) => unknown };

// An agent may send anything, whatever the types say, so each value is checked before it is shown.
const text = (value: unknown) => (["string", "number", "boolean"].includes(typeof value) ? String(value) : "");
const list = <Item,>(value: Item[] | undefined): Item[] => (Array.isArray(value) ? value.map(fields) : []);
const fields = <Data,>(value: Data): Data => (typeof value === "object" && value !== null ? value : ({} as Data));
const code = (value: unknown) => <code dir="ltr">{text(value)}</code>;
const some = (value: unknown, one: string, many: string) => `${text(value) || "no"} ${value === 1 ? one : many}`;

const LINES: Lines = {
  "file-write-start": { icon: "file", says: ({ path }) => <>Writes {code(path)}</>, more: ({ content }) => content },
  "file-written": { icon: "file", says: ({ path }) => <>Wrote {code(path)}</>, more: ({ content }) => content },
  "file-edited": { icon: "edit", says: ({ path, occurrences }) => <>Edited {code(path)} in {some(occurrences, "place", "places")}</> },
  "file-read": { icon: "file", says: ({ path, lines }) => <>Read {code(path)}, {some(lines, "line", "lines")}</> },
  ls: { icon: "file", says: ({ path, count }) => <>Listed {code(path)}, {some(count, "entry", "entries")}</> },
  glob: { icon: "file", says: ({ pattern, count }) => <>Looked for {code(pattern)}, {some(count, "file", "files")}</> },
  grep: { icon: "file", says: ({ pattern, count }) => <>Searched for {code(pattern)}, {some(count, "match", "matches")}</> },
  "execute-start": { icon: "terminal", says: ({ command }) => <>Runs {code(command)}</> },
  "execute-finish": { icon: "terminal", says: ({ command, exitCode }) => <>Ran {code(command)}, exit code {text(exitCode) || "none"}</> },
  "web-search-start": { icon: "globe", says: ({ query }) => <>Searches the web for “{text(query)}”</> },
  "web-search-finish": {
    icon: "globe",
    says: ({ query, resultCount }) => <>Searched the web for “{text(query)}”, {some(resultCount, "result", "results")}</>,
  },
  "http-request-start": { icon: "globe", says: ({ method, url }) => <>{text(method)} {code(url)}</> },
  "http-request-finish": { icon: "globe", says: ({ url, statusCode }) => <>{code(url)} answered {text(statusCode)}</> },
  "fetch-url-start": { icon: "globe", says: ({ url }) => <>Fetches {code(url)}</> },
  "fetch-url-finish": { icon: "globe", says: ({ url, success }) => <>{success === true ? "Fetched" : "Could not fetch"} {code(url)}</> },
  "subagent-start": { icon: "users", says: ({ name, task }) => <>Asks <b>{text(name)}</b>: {text(task)}</> },
  "subagent-step": {
    icon: "users",
    says: ({ stepIndex, toolCalls }) => <>Step {text(stepIndex)} of the sub-agent, {some(list(toolCalls).length, "call", "calls")}</>,
    more: ({ toolCalls }) => toolCalls,
  },
  "subagent-finish": { icon: "users", says: ({ name }) => <><b>{text(name)}</b> is done</>, more: ({ result }) => result },
  subagent: {
    icon: "users",
    says: ({ name, status, tools }) => (
      <>
        <b>{text(name)}</b> {text(status)}
        {list(tools).map(({ toolName, state }) => `, ${text(toolName)} ${text(state)}`)}
      </>
    ),
    more: ({ reasoning, text: said }) => [text(reasoning), text(said)].filter(Boolean).join("\n\n"),
  },
  "checkpoint-saved": { icon: "check", says: ({ step }) => <>Saved a checkpoint after step {text(step)}</> },
  "checkpoint-loaded": { icon: "check", says: ({ step }) => <>Went on from the checkpoint of step {text(step)}</> },
};

const VIEWS: Views = {
  "agent-error": AgentError,
  "agent-status": AgentStatus,
  batch: ({ data, ...rest }) =>
    list(data.events).map(({ type, ...event }, index) => <DataPart key={index} part={{ type: `data-${type}`, data: event }} {...rest} />),
  "flow-event": FlowEvent,
  "flow-status": FlowStatus,
  interrupt: Interrupt,
  node: NodeStatus,
  question: Question,
  todos: Todos,
  "todos-changed": Todos,
};

interface DataPartProps {
  /** A part of a message. Only data parts are drawn. */
  part: { type: string; data?: unknown };
  /** Whether the answer is still being written. The status of an agent is shown only then. */
  live?: boolean;
  answer?: AnswerQuestion;
}

/** Draws a data part by its name, or as JSON if the name is unknown. */
export function DataPart({ part, live = true, answer = () => {} }: DataPartProps): ReactNode {
  if (!part.type.startsWith("data-") || !("data" in part)) return null;
  const name = part.type.slice("data-".length);
  const line = own(LINES, name) as Line<object> | undefined;
  if (line) return <EventLine line={line} event={fields(part.data) ?? {}} />;
  const View = own(VIEWS, name) as ((given: { data: unknown; answer: AnswerQuestion; live: boolean }) => ReactNode) | undefined;
  if (View) return <View data={fields(part.data)} answer={answer} live={live} />;
  return <Unknown name={name} data={part.data} />;
}

function Unknown({ name, data }: { name: string; data: unknown }) {
  return (
    <Fold className="usechat-card" summary={<b className="usechat-grow">{name}</b>}>
      <Json value={data} label={name} />
    </Fold>
  );
}

const own = (views: object, name: string): unknown => (Object.keys(views).includes(name) ? views[name as keyof object] : undefined);

function EventLine({ line, event }: { line: Line<object>; event: object }) {
  const more = line.more?.(event);
  const summary = (
    <>
      <Drawing d={ICONS[line.icon]} />
      <span className="usechat-grow" dir="auto">{line.says(event)}</span>
    </>
  );
  if (more === undefined || more === "") return <div className="usechat-event">{summary}</div>;
  return (
    <Fold className="usechat-event" summary={summary}>
      <Json value={more} label="Content" />
    </Fold>
  );
}

const MARKS: Record<string, [IconName, string]> = {
  pending: ["circle", "to do"],
  in_progress: ["chevron", "in progress"],
  completed: ["check", "done"],
  cancelled: ["close", "cancelled"],
};

function Todos({ data }: { data: UsechatDataParts["todos"] }) {
  const todos = list(data.todos);
  return (
    <div className="usechat-card" role="group" aria-label="To do">
      <p>
        <b>To do</b> <span className="usechat-soft">{todos.filter(({ status }) => status === "completed").length} of {todos.length}</span>
      </p>
      <ul>
        {todos.map(({ content, status }, index) => {
          const [icon, label] = (own(MARKS, text(status)) ?? ["circle", text(status)]) as [IconName, string];
          return (
            <li key={index} className={`usechat-todo ${icon}`}>
              <Drawing d={ICONS[icon]} />
              <span dir="auto">{text(content)}</span>
              <span className="usechat-unseen">{label}</span>
            </li>
          );
        })}
      </ul>
    </div>
  );
}

function AgentStatus({ data: { status, detail, position }, live }: { data: UsechatDataParts["agent-status"]; live: boolean }) {
  // A finished message still has its last status.
  if (!live) return null;
  const place = text(position) && `, place ${text(position)}`;
  return <Status status={status}>{`Agent: ${text(status).replace("_", " ")}${place}${text(detail) && ` – ${text(detail)}`}`}</Status>;
}

function FlowStatus({ data: { status, flowName } }: { data: UsechatDataParts["flow-status"] }) {
  return <Status status={status}>{`${text(flowName) || "Flow"}: ${text(status)}`}</Status>;
}

function NodeStatus({ data: { nodeId, status, reason } }: { data: UsechatDataParts["node"] }) {
  return (
    <Status status={status} className="usechat-node">
      <b dir="auto">{text(nodeId)}</b> {text(status)}
      {text(reason) && `, ${text(reason)}`}
    </Status>
  );
}

function FlowEvent({ data }: { data: UsechatDataParts["flow-event"] }) {
  if (data.type !== "edge:fire") return <Unknown name={text(data.type) || "flow-event"} data={data} />;
  return <EventLine line={{ icon: "flow", says: () => `${text(data.from)} → ${text(data.to)}` }} event={data} />;
}

const TONES: Record<string, string> = { complete: "good", failed: "bad", aborted: "bad", error: "bad", skipped: "soft", idle: "soft" };

function Status({ status, className = "", children }: { status: unknown; className?: string; children: ReactNode }) {
  return (
    <p className={`usechat-status ${className} ${text(own(TONES, text(status))) || "busy"}`}>
      <span className="usechat-dot" />
      <span dir="auto">{children}</span>
    </p>
  );
}

function AgentError({ data: { nodeId, message } }: { data: UsechatDataParts["agent-error"] }) {
  return (
    <p className="usechat-status bad">
      <Drawing d={ICONS.alert} />
      <span dir="auto">{text(nodeId) && <b>{text(nodeId)}: </b>}{text(message)}</span>
    </p>
  );
}

function Interrupt({ data: { value } }: { data: UsechatDataParts["interrupt"] }) {
  return (
    <div className="usechat-card" role="group" aria-label="Question">
      <p dir="auto">
        <Drawing d={ICONS.question} />
        <b>{text(value) || "The agent waits for your answer."}</b>
      </p>
      {text(value) === "" && <Json value={value} label="Question" />}
    </div>
  );
}

function Question({ data, answer }: { data: UsechatDataParts["question"]; answer: AnswerQuestion }) {
  const heading = useId();
  const [isSent, setSent] = useState(false);
  const [own, setOwn] = useState("");
  const options = Array.isArray(data.options) ? data.options.map((option): [string, string] => [text(option), text(option)]) : [];
  // A permission is refused with false and granted with any other answer, so that nobody has to type "no".
  const choices: [string, string | boolean][] = options.length > 0 ? options : [["Yes", true], ["No", false]];
  const give = (value: string | boolean) => {
    setSent(true);
    answer(text(data.questionId), value);
  };
  return (
    <div className="usechat-card" role="group" aria-labelledby={heading}>
      <p id={heading} dir="auto">
        <Drawing d={ICONS.question} />
        <b>{text(data.text)}</b>
      </p>
      {data.state === "open" && !isSent && (
        <form
          className="usechat-row"
          onSubmit={(event) => {
            event.preventDefault();
            if (own.trim()) give(own.trim());
          }}
        >
          {choices.map(([label, value], index) => (
            <button key={index} type="button" dir="auto" onClick={() => give(value)}>{label}</button>
          ))}
          {options.length === 0 && (
            <>
              <input aria-label="Answer" placeholder="Or in your words" value={own} onChange={(event) => setOwn(event.target.value)} dir="auto" />
              <button>Answer</button>
            </>
          )}
        </form>
      )}
      {data.state === "answered" && <p className="usechat-soft" dir="auto">Answered: {text(data.answer)}</p>}
      {data.state === "expired" && <p className="usechat-soft">Nobody answered in time.</p>}
    </div>
  );
}

interface FoldProps {
  summary: ReactNode;
  /** Whether it is open until the user has clicked. */
  open?: boolean;
  className?: string;
  children: ReactNode;
}

/** A heading that shows and hides its content. */
export function Fold({ summary, open = false, className = "", children }: FoldProps) {
  const [chosen, setChosen] = useState<boolean>();
  const body = useId();
  const isOpen = chosen ?? open;
  return (
    <div className={`usechat-fold ${className}`}>
      <button type="button" className="usechat-fold-head" aria-expanded={isOpen} aria-controls={body} onClick={() => setChosen(!isOpen)}>
        {summary}
        <Drawing d={ICONS.chevron} />
      </button>
      <div id={body} className="usechat-fold-body" hidden={!isOpen}>
        {isOpen && children}
      </div>
    </div>
  );
}

/** A value as text: strings as they are, anything else as JSON. It takes the keyboard focus because it may scroll. */
export function Json({ value, label }: { value: unknown; label: string }) {
  return (
    <pre className="usechat-json" tabIndex={0} role="group" aria-label={label} dir="auto">
      {typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "")}
    </pre>
  );
}

/** Inline, so that nothing has to be loaded. */
export const ICONS = {
  alert: "M12 8v5M12 16.5v.01M12 3.5 21 19H3z",
  check: "m5 12.5 4.5 4.5L19 7.5",
  chevron: "m9 6 6 6-6 6",
  circle: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16z",
  close: "m6 6 12 12M18 6 6 18",
  edit: "m4 20 1-4L16 5l3 3L8 19zM14 7l3 3",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  flow: "M6 4a2 2 0 1 0 0 4 2 2 0 0 0 0-4zm12 12a2 2 0 1 0 0 4 2 2 0 0 0 0-4zM6 8v4a4 4 0 0 0 4 4h6",
  globe: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16zM4 12h16M12 4c5 5 5 11 0 16M12 4c-5 5-5 11 0 16",
  question: "M9.5 9a2.5 2.5 0 1 1 3.5 2.3c-.7.3-1 .8-1 1.7M12 16.5v.01M12 3.5a8.5 8.5 0 1 0 0 17 8.5 8.5 0 0 0 0-17z",
  terminal: "m5 8 4 4-4 4M12 16h7",
  users: "M9 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM3.5 19c0-3 2.5-5 5.5-5s5.5 2 5.5 5M16 5.5a3 3 0 0 1 0 5.5M17 14.3c2.2.5 3.5 2.2 3.5 4.7",
} as const;
type IconName = keyof typeof ICONS;

export function Drawing({ d }: { d: string }) {
  return (
    <svg className="usechat-icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d={d} />
    </svg>
  );
}

/** The styles of all components. Colours follow the text around them unless custom properties set them. */
export const PART_STYLES = `
.usechat-card, .usechat-event, .usechat-status, .usechat-fold, .usechat-json {
  --_line: var(--usechat-line, color-mix(in srgb, currentColor 16%, transparent));
  --_sunken: var(--usechat-sunken, color-mix(in srgb, currentColor 6%, transparent));
  --_accent: var(--usechat-accent, #12806f);
}
.usechat-card, .usechat-event, .usechat-status, .usechat-fold {
  min-width: 0; margin: var(--usechat-gap, 8px) 0; overflow-wrap: anywhere;
}
.usechat-card { display: flex; flex-direction: column; gap: 10px; padding: 14px 16px; border: 1px solid var(--_line); border-radius: 12px;
  background: var(--usechat-surface, transparent); font-size: 0.9375rem; }
.usechat-card p, .usechat-card ul { margin: 0; padding: 0; list-style: none; }
.usechat-card b { font-weight: 600; }
.usechat-card > p, .usechat-todo, .usechat-event, .usechat-status, .usechat-fold-head { display: flex; gap: 10px; align-items: center; }
.usechat-card > ul { display: flex; flex-direction: column; gap: 6px; }
.usechat-row { display: flex; flex-wrap: wrap; gap: 8px; }
.usechat-row button, .usechat-row input { max-width: 100%; min-height: 36px; padding: 5px 14px; border: 1px solid var(--_line);
  border-radius: 10px; background: none; color: inherit; font: inherit; overflow-wrap: anywhere; }
.usechat-row input { flex: 1 1 160px; min-width: 0; }
.usechat-row button, .usechat-fold-head { cursor: pointer; }
.usechat-row button:hover { background: var(--_sunken); }
.usechat-soft, .usechat-event, .usechat-status { color: var(--usechat-soft, color-mix(in srgb, currentColor 72%, transparent)); }
.usechat-event, .usechat-status { font-size: 0.875rem; }
.usechat-event { min-height: 28px; }
.usechat-event.usechat-fold { display: block; }
.usechat-event code, .usechat-event b, .usechat-node b { color: var(--usechat-ink, inherit); font-weight: 550; }
.usechat-event code { font-size: 0.9375em; font-weight: 450; }
.usechat-event code, .usechat-json { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.usechat-todo { align-items: flex-start; }
.usechat-todo .usechat-icon { margin-block-start: 0.2rem; }
.usechat-todo.chevron { font-weight: 550; }
.usechat-todo.chevron .usechat-icon { color: var(--_accent); }
.usechat-todo.check .usechat-icon { color: var(--usechat-good, #1b8a5a); }
.usechat-todo.check span, .usechat-todo.close span { text-decoration: line-through; opacity: 0.75; }
.usechat-node { padding-block: 6px; border-block-end: 1px solid var(--_line); }
.usechat-dot { flex: none; width: 8px; height: 8px; border-radius: 50%; background: var(--_accent); }
.good .usechat-dot { background: var(--usechat-good, #1b8a5a); }
.soft .usechat-dot { background: currentColor; opacity: 0.5; }
.bad .usechat-dot { background: var(--usechat-bad, #c9372c); }
.bad > .usechat-icon { color: var(--usechat-bad, #c9372c); }
.usechat-fold-head { width: 100%; min-height: 28px; padding: 0; border: 0; background: none; color: inherit; font: inherit; text-align: start; }
.usechat-grow { flex: 1; }
.usechat-fold-head > .usechat-icon:last-child { width: 0.9375rem; height: 0.9375rem; }
[dir="rtl"] .usechat-fold-head > .usechat-icon:last-child { transform: scaleX(-1); }
.usechat-fold-head[aria-expanded="true"] > .usechat-icon:last-child { transform: rotate(90deg); }
.usechat-json { max-height: 320px; margin: 4px 0 0; padding: 10px 12px; overflow: auto; border-radius: 8px; background: var(--_sunken);
  font-size: 0.8125rem; line-height: 1.55; overflow-wrap: anywhere; white-space: pre-wrap; }
.usechat-icon { flex: none; width: 1.125rem; height: 1.125rem; fill: none; stroke: currentColor; stroke-width: 1.7; stroke-linecap: round;
  stroke-linejoin: round; }
.usechat-unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
`;

/** Puts the styles into the page. A Content-Security-Policy needs its nonce. */
export function PartStyles({ nonce }: { nonce?: string }) {
  return <style nonce={nonce}>{PART_STYLES}</style>;
}
