/** One chat: its messages, and everything that a user can do with them. */
import { useChat, type UseChatHelpers } from "@ai-sdk/react";
import type { UIMessage } from "ai";
import { useEffect, useMemo, useRef, useState } from "react";

import type { Connection } from "../connection.ts";
import type { Recording } from "../recording/file.ts";
import type { MessageActions } from "./Message.tsx";

// The page is drawn at most once in 50 ms while an answer streams.
const FRAME = 50;
const ENDS = ["finish", "abort", "error"];

export interface TransientData {
  name: string;
  data: unknown;
}

export function useConversation(connection: Connection, id: string, loaded: UIMessage[], played?: Recording) {
  const { transport, recorder } = connection;
  const [transient, setTransient] = useState<TransientData[]>([]);
  const [isStopped, setStopped] = useState(false);
  const opened = useMemo(() => connection.open(id, loaded), []);
  // The hook would stop a chat of its own when the user opens another one.
  const chat = useChat({ chat: opened.chat, throttle: FRAME });
  useEffect(() => {
    opened.onData = (part) => {
      if (!("transient" in part) || part.transient !== true) return;
      const name = part.type.slice("data-".length);
      setTransient((known) => [...known.filter((other) => other.name !== name), { name, data: part.data }]);
    };
    return () => {
      opened.onData = () => undefined;
    };
  }, []);
  const running = chat.status === "submitted" || chat.status === "streaming";
  const latest = useRef(chat);
  const wasStopped = useRef(false);
  useEffect(() => {
    latest.current = chat;
  });

  useEffect(() => {
    if (!running) setTransient([]);
    else setStopped(false);
  }, [running]);

  useEffect(() => {
    let isHere = true;
    // A message that could not be sent is only here, so it stays until the user tries again.
    const isIdle = () => isHere && latest.current.status === "ready";
    const load = async () => {
      const messages = await transport.messages(id).catch(() => undefined);
      if (messages !== undefined && messages.length > 0 && isIdle()) latest.current.setMessages(messages);
    };
    const follow = async () => {
      if (!isIdle()) return;
      wasStopped.current = false;
      await latest.current.resumeStream();
      // The turn may have ended between the two requests. A turn that is stopping is not in the history yet.
      if (!wasStopped.current) await load();
    };
    if (played !== undefined) void play(latest.current, played);
    else if (loaded.length > 0) void follow();
    // Another tab has sent a message in this chat, or time has passed.
    const heard = connection.onOthers((chatId) => {
      if (chatId === id) void load().then(follow);
    });
    const seen = () => {
      if (document.visibilityState === "visible" && latest.current.messages.length > 0) void load().then(follow);
    };
    document.addEventListener("visibilitychange", seen);
    return () => {
      isHere = false;
      heard();
      document.removeEventListener("visibilitychange", seen);
    };
  }, []);

  const actions = useMemo<MessageActions>(() => {
    const answered = (questionId: string, value: string | boolean) => {
      void transport.answer(questionId, value).then((isTaken) => {
        if (!isTaken) void latest.current.sendMessage({ text: value === true ? "Yes" : value === false ? "No" : value });
      });
    };
    return {
      regenerate: (messageId) => void latest.current.regenerate({ messageId }),
      edit: (message, text) => {
        const files = message.parts.filter((part) => part.type === "file");
        void latest.current.sendMessage({ messageId: message.id, role: "user", parts: [...files, { type: "text", text }] });
      },
      answer: answered,
      approve: (approvalId, approved, reason) =>
        void latest.current.addToolApprovalResponse({ id: approvalId, approved, ...(reason === undefined ? {} : { reason }) }),
      output: (tool, toolCallId, output) => void latest.current.addToolOutput({ tool, toolCallId, output }),
      fail: (tool, toolCallId, errorText) =>
        void latest.current.addToolOutput({ tool, toolCallId, state: "output-error", errorText }),
    };
  }, []);

  const stop = () => {
    setStopped(true);
    wasStopped.current = true;
    // The page stops reading, and the agent stops working.
    void chat.stop();
    void transport.halt(id, recorder.latest(id)?.id);
  };
  const send = (text: string, files: File[]) => {
    const list = new DataTransfer();
    files.forEach((file) => list.items.add(file));
    void chat.sendMessage(files.length > 0 ? { text, files: list.files } : { text });
  };
  const retry = async () => {
    const turn = recorder.latest(id);
    // Without a last chunk the connection was lost, and the server may have the answer.
    const isCut = connection.agent.keeps && turn?.id !== undefined && !ENDS.some((end) => turn.types.has(end));
    chat.clearError();
    if (isCut) {
      const messages = await transport.messages(id).catch(() => []);
      if (messages.length > 0) chat.setMessages(messages);
      await chat.resumeStream();
      if (messages.at(-1)?.role !== "user" || opened.chat.status !== "ready" || opened.chat.lastMessage?.role !== "user") return;
    }
    await chat.regenerate();
  };
  return { ...chat, running, transient, isStopped, actions, stop, send, retry: () => void retry() };
}

/** Repeats what the recording did: sends a message, continues one, or resumes. */
function play({ sendMessage, resumeStream }: Pick<UseChatHelpers<UIMessage>, "sendMessage" | "resumeStream">, { request }: Recording) {
  const message = request?.message ?? request?.messages?.at(-1);
  if (message === undefined) return resumeStream();
  return sendMessage(message.role === "user" ? message : undefined);
}
