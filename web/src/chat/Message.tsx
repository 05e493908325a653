import { isToolUIPart, type UIMessage } from "ai";
import { memo, useState } from "react";

import { type AnswerQuestion, DataPart } from "../react.ts";
import { FilePart } from "../parts/FilePart.tsx";
import { Reasoning } from "../parts/Reasoning.tsx";
import { type Source, Sources } from "../parts/Sources.tsx";
import { Tool, type ToolAnswers } from "../parts/Tool.tsx";
import { Boundary } from "../ui/Boundary.tsx";
import { CopyButton } from "../ui/CopyButton.tsx";
import { Icon } from "../ui/icons.tsx";
import { Editor } from "./Editor.tsx";
import { Markdown } from "./Markdown.tsx";
import { Usage } from "./Usage.tsx";

export interface MessageActions extends ToolAnswers {
  regenerate: (messageId: string) => void;
  edit: (message: UIMessage, text: string) => void;
  answer: AnswerQuestion;
}

interface Props {
  message: UIMessage;
  /** Whether it is still being written. */
  live: boolean;
  isLast: boolean;
  /** Whether the agent is working, in this message or another. */
  busy: boolean;
  actions: MessageActions;
}

type Part = UIMessage["parts"][number];

const isSource = (part: Part): part is Source => part.type === "source-url" || part.type === "source-document";

function textOf(message: UIMessage): string {
  return message.parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n\n");
}

export const Message = memo(function Message({ message, live, isLast, busy, actions }: Props) {
  const [isEdited, setEdited] = useState(false);
  const isUser = message.role === "user";
  const context: Context = { live, open: isLast && !busy, isUser, actions };
  return (
    <article className={`message ${isUser ? "user" : "assistant"}`} aria-label={isUser ? "You" : "Assistant"}>
      {isEdited ? (
        <Editor
          text={textOf(message)}
          save={(text) => {
            setEdited(false);
            actions.edit(message, text);
          }}
          cancel={() => setEdited(false)}
        />
      ) : (
        <div className="content">
          <Boundary instead={() => <Undrawn text={textOf(message)} />}>{shown(message.parts, context)}</Boundary>
        </div>
      )}
      {!live && !isEdited && (
        <footer className="actions">
          {textOf(message) !== "" && <CopyButton text={() => textOf(message)} />}
          {isUser && !busy && (
            <button type="button" className="button quiet" aria-label="Edit" title="Edit" onClick={() => setEdited(true)}>
              <Icon name="edit" />
            </button>
          )}
          {!isUser && isLast && !busy && (
            <button type="button" className="button quiet" aria-label="Regenerate" title="Regenerate" onClick={() => actions.regenerate(message.id)}>
              <Icon name="redo" />
            </button>
          )}
          {!isUser && <Usage metadata={message.metadata} />}
        </footer>
      )}
    </article>
  );
});

/** The plain text of a message that cannot be drawn. */
function Undrawn({ text }: { text: string }) {
  return (
    <>
      {text && <p className="plain" dir="auto">{text}</p>}
      <p className="notice bad"><Icon name="alert" /><span>The page cannot show all of this message.</span></p>
    </>
  );
}

interface Context {
  live: boolean;
  open: boolean;
  isUser: boolean;
  actions: MessageActions;
}

/** The parts in their order. Sources that follow each other become one list. */
function shown(parts: Part[], context: Context) {
  return parts.map((part, index) => {
    if (!isSource(part)) return <PartView key={index} part={part} {...context} />;
    const before = parts[index - 1];
    if (before !== undefined && isSource(before)) return null;
    const end = parts.findIndex((other, place) => place > index && !isSource(other));
    return <Sources key={index} sources={parts.slice(index, end === -1 ? undefined : end).filter(isSource)} />;
  });
}

function PartView({ part, live, open, isUser, actions }: Context & { part: Part }) {
  if (isToolUIPart(part)) return <Tool part={part} live={live} open={open} answers={actions} />;
  switch (part.type) {
    case "text":
      if (isUser) return <p className="said" dir="auto">{part.text}</p>;
      return <Markdown text={part.text} live={live && part.state === "streaming"} />;
    case "reasoning":
      return <Reasoning text={part.text} live={live && part.state === "streaming"} />;
    case "file":
      return <FilePart url={part.url} mediaType={part.mediaType} filename={part.filename} />;
    case "reasoning-file":
      return <FilePart url={part.url} mediaType={part.mediaType} />;
    case "step-start":
      return <span className="step" />;
    default:
      return <DataPart part={part} live={live} answer={actions.answer} />;
  }
}
