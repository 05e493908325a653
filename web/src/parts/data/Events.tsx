import type { ReactNode } from "react";

import { Fold } from "../../ui/Fold.tsx";
import { Icon, type IconName } from "../../ui/icons.tsx";
import { Json } from "../../ui/Json.tsx";
import { type Fields, fields, list, text } from "./fields.ts";

interface Line {
  icon: IconName;
  says: (event: Fields) => ReactNode;
  /** What can be unfolded below the line. */
  more?: (event: Fields) => unknown;
}

const code = (value: unknown) => <code dir="ltr">{text(value)}</code>;
const some = (value: unknown, one: string, many: string) => `${text(value)} ${value === 1 ? one : many}`;
const content = (event: Fields) => event.content;

/** What an agent does beside talking: files, commands, the web, sub-agents and checkpoints. */
const LINES: Record<string, Line> = {
  "file-write-start": { icon: "file", says: ({ path }) => <>Writes {code(path)}</>, more: content },
  "file-written": { icon: "file", says: ({ path }) => <>Wrote {code(path)}</>, more: content },
  "file-edited": { icon: "edit", says: ({ path, occurrences }) => <>Edited {code(path)} in {some(occurrences, "place", "places")}</> },
  "file-read": { icon: "file", says: ({ path, lines }) => <>Read {code(path)}, {some(lines, "line", "lines")}</> },
  ls: { icon: "file", says: ({ path, count }) => <>Listed {code(path)}, {some(count, "entry", "entries")}</> },
  glob: { icon: "file", says: ({ pattern, count }) => <>Looked for {code(pattern)}, {some(count, "file", "files")}</> },
  grep: { icon: "file", says: ({ pattern, count }) => <>Searched for {code(pattern)}, {some(count, "match", "matches")}</> },
  "execute-start": { icon: "terminal", says: ({ command }) => <>Runs {code(command)}</> },
  "execute-finish": { icon: "terminal", says: ({ command, exitCode }) => <>Ran {code(command)}, exit code {text(exitCode) || "none"}</> },
  "web-search-start": { icon: "globe", says: ({ query }) => <>Searches the web for “{text(query)}”</> },
  "web-search-finish": { icon: "globe", says: ({ query, resultCount }) => <>Searched the web for “{text(query)}”, {some(resultCount, "result", "results")}</> },
  "http-request-start": { icon: "globe", says: ({ method, url }) => <>{text(method)} {code(url)}</> },
  "http-request-finish": { icon: "globe", says: ({ url, statusCode }) => <>{code(url)} answered {text(statusCode)}</> },
  "fetch-url-start": { icon: "globe", says: ({ url }) => <>Fetches {code(url)}</> },
  "fetch-url-finish": { icon: "globe", says: ({ url, success }) => <>{success === true ? "Fetched" : "Could not fetch"} {code(url)}</> },
  "subagent-start": { icon: "users", says: ({ name, task }) => <>Asks <b>{text(name)}</b>: {text(task)}</> },
  "subagent-step": { icon: "users", says: ({ stepIndex, toolCalls }) => <>Step {text(stepIndex)} of the sub-agent, {some(list(toolCalls).length, "call", "calls")}</>, more: ({ toolCalls }) => toolCalls },
  "subagent-finish": { icon: "users", says: ({ name }) => <><b>{text(name)}</b> is done</>, more: ({ result }) => result },
  subgraph: { icon: "users", says: ({ name }) => <b>{text(name)}</b>, more: (event) => event.text },
  "checkpoint-saved": { icon: "check", says: ({ step }) => <>Saved a checkpoint after step {text(step)}</> },
  "checkpoint-loaded": { icon: "check", says: ({ step }) => <>Went on from the checkpoint of step {text(step)}</> },
};

export const isEvent = (name: string) => Object.hasOwn(LINES, name);

/** One line that tells an event; its content can be unfolded. */
export function EventLine({ name, data }: { name: string; data: unknown }) {
  const line = LINES[name];
  if (line === undefined) return null;
  const event = fields(data);
  const more = line.more?.(event);
  const told = (
    <>
      <Icon name={line.icon} />
      <span dir="auto">{line.says(event)}</span>
    </>
  );
  if (more === undefined || more === "") return <div className="event">{told}</div>;
  return (
    <Fold className="event-fold" summary={told}>
      <Json value={more} label="Content" />
    </Fold>
  );
}
