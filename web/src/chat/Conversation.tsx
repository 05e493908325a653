import { isToolUIPart, type UIMessage } from "ai";
import { type DragEvent, useEffect, useState } from "react";

import type { Connection } from "../connection.ts";
import { Inspector } from "../inspector/Inspector.tsx";
import { DataPart } from "../react.ts";
import { isLeftToBrowser } from "../parts/Tool.tsx";
import { isRecording, type Recording } from "../recording/file.ts";
import type { Agent, Prompt } from "../settings.ts";
import { Icon } from "../ui/icons.tsx";
import { Composer } from "./Composer.tsx";
import { messageOf } from "./errors.ts";
import { AllowedImages, useAllowedImages } from "./images.ts";
import { Message } from "./Message.tsx";
import { Transcript } from "./Transcript.tsx";
import { useConversation } from "./useConversation.ts";

interface Props {
  connection: Connection;
  id: string;
  loaded: UIMessage[];
  /** A recording to play at once. */
  played?: Recording;
  inspecting: boolean;
  closeInspector: () => void;
  /** Called when a turn is over. */
  onTurn: () => void;
}

export function Conversation({ connection, id, loaded, played, inspecting, closeInspector, onTurn }: Props) {
  const chat = useConversation(connection, id, loaded, played);
  const { messages, running, error } = chat;
  const last = messages.at(-1);
  const images = useAllowedImages(messages, connection.agent.images);
  const [dropped, setDropped] = useState<File[]>([]);
  const drop = (event: DragEvent) => setDropped([...event.dataTransfer.files].filter((file) => !isRecording(file)));
  const suggest = (text: string) => chat.send(text, []);
  useEffect(() => {
    if (messages.length > 0) onTurn();
  }, [running]);

  return (
    <>
      <main className="chat" onDrop={drop}>
        <Transcript busy={running} count={messages.length}>
          {messages.length === 0 && !running && <Welcome agent={connection.agent} send={suggest} />}
          <AllowedImages value={images}>
            {messages.map((message) => (
              <Message
                key={message.id}
                message={message}
                live={running && message === last && message.role === "assistant"}
                isLast={message === last}
                busy={running}
                actions={chat.actions}
              />
            ))}
          </AllowedImages>
          {chat.transient.map(({ name, data }) => (
            <DataPart key={name} part={{ type: `data-${name}`, data }} answer={chat.actions.answer} />
          ))}
          {running && <p className="waiting" aria-hidden="true"><span /><span /><span /></p>}
          {chat.isStopped && !running && <p className="muted">Stopped</p>}
          {error && <Failure text={messageOf(error)} retry={chat.retry} />}
        </Transcript>
        <div className="column foot">
          {messages.length > 0 && !running && <Prompts prompts={connection.agent.prompts} className="chips" send={suggest} />}
          <Composer running={running} dropped={dropped} send={chat.send} stop={chat.stop} />
        </div>
        <p role="status" className="unseen">
          {statusOf(chat.status, chat.isStopped, last)}
        </p>
      </main>
      {inspecting && <Inspector connection={connection} chatId={id} messages={messages} close={closeInspector} />}
    </>
  );
}

function Welcome({ agent, send }: { agent: Agent; send: (text: string) => void }) {
  return (
    <div className="welcome">
      <header>
        <h2>What shall we talk about?</h2>
        {agent.about && <p className="muted">{agent.about}</p>}
      </header>
      <Prompts prompts={agent.prompts} className="prompts" send={send} />
    </div>
  );
}

function Prompts({ prompts, className, send }: { prompts: Prompt[]; className: string; send: (text: string) => void }) {
  if (prompts.length === 0) return null;
  return (
    <div className={className} role="group" aria-label="Suggested prompts">
      {prompts.map(({ text, shows }) => (
        <button key={text} type="button" className="prompt" dir="auto" onClick={() => send(text)}>
          <span>{text}</span>
          {shows && <span className="shows">{shows}</span>}
        </button>
      ))}
    </div>
  );
}

export function Failure({ text, retry }: { text: string; retry: () => void }) {
  return (
    <div role="alert" className="notice bad">
      <Icon name="alert" />
      <span dir="auto">{text}</span>
      <button type="button" className="button" onClick={retry}>
        Retry
      </button>
    </div>
  );
}

function statusOf(status: string, isStopped: boolean, last: UIMessage | undefined): string {
  if (status === "submitted") return "The message was sent.";
  if (status === "streaming") return "The assistant is answering.";
  if (status === "error") return "The answer failed.";
  if (isStopped) return "The answer was stopped.";
  const calls = last?.parts.filter(isToolUIPart) ?? [];
  if (calls.some(({ state }) => state === "approval-requested")) return "The assistant asks for your approval.";
  if (calls.some(isLeftToBrowser)) return "The assistant waits for the output of a tool.";
  return last?.role === "assistant" ? "The assistant has answered." : "";
}
