import { generateId, type UIMessage } from "ai";
import { type DragEvent, useCallback, useEffect, useMemo, useRef, useState } from "react";

import { Conversation, Failure } from "./chat/Conversation.tsx";
import { Replay } from "./chat/Replay.tsx";
import { Sidebar } from "./chat/Sidebar.tsx";
import { SignIn } from "./chat/SignIn.tsx";
import { messageOf } from "./chat/errors.ts";
import { Connection } from "./connection.ts";
import type { ChatEntry } from "./react.ts";
import { isRecording, readRecording, type Recording } from "./recording/file.ts";
import { onSignedOut } from "./session.ts";
import { type Agent, loadSettings, type Settings } from "./settings.ts";
import { Boundary } from "./ui/Boundary.tsx";
import { Icon } from "./ui/icons.tsx";

interface Place {
  agent: Agent;
  chatId: string;
}

/** The chat, or the sign-in. */
export function App({ settings }: { settings: Settings }) {
  const [{ agents, signedIn }, setSettings] = useState(settings);
  useEffect(() => onSignedOut(() => setSettings({ agents, signedIn: false })), [agents]);
  const again = () => void loadSettings().then(setSettings, () => undefined);
  return signedIn ? <Agents agents={agents} /> : <SignIn done={again} />;
}

function Agents({ agents }: { agents: Agent[] }) {
  const [place, setPlace] = useState(() => placeOf(agents));
  const { agent, chatId } = place;
  const connection = useMemo(() => new Connection(agent), [agent]);
  const link = useCallback((id: string) => address(agents, agent, id), [agents, agent]);

  useEffect(() => {
    const back = () => setPlace(placeOf(agents));
    addEventListener("popstate", back);
    return () => removeEventListener("popstate", back);
  }, [agents]);

  const go = (to: Place) => {
    history.pushState(null, "", address(agents, to.agent, to.chatId));
    setPlace(to);
  };
  return <Window key={agent.path} agents={agents} connection={connection} chatId={chatId} link={link} go={go} />;
}

interface WindowProps {
  agents: Agent[];
  connection: Connection;
  chatId: string;
  link: (chatId: string) => string;
  go: (to: Place) => void;
}

function Window({ agents, connection, chatId, link, go }: WindowProps) {
  const { agent, transport } = connection;
  const [chats, setChats] = useState<ChatEntry[]>([]);
  const [next, setNext] = useState<string>();
  const [inspecting, setInspecting] = useState(false);
  const [isMenuOpen, setMenuOpen] = useState(false);
  const [recording, setRecording] = useState<Recording>();
  const [replays, setReplays] = useState(0);
  const [problem, setProblem] = useState("");
  const inspectorButton = useRef<HTMLButtonElement>(null);
  const menuButton = useRef<HTMLButtonElement>(null);
  // The focus goes back to where it came from.
  const closeInspector = () => {
    setInspecting(false);
    inspectorButton.current?.focus();
  };
  const closeMenu = () => {
    setMenuOpen(false);
    menuButton.current?.focus();
  };
  const title = chats.find(({ id }) => id === chatId)?.title ?? "";

  const list = useCallback(() => {
    const show = (page: { chats: ChatEntry[]; next?: string }) => {
      setChats(page.chats);
      setNext(page.next);
    };
    void transport.chats().then(show, () => undefined);
  }, [transport]);
  const more = () => {
    void transport.chats(next).then((page) => {
      setChats([...chats, ...page.chats]);
      setNext(page.next);
    }, () => undefined);
  };
  useEffect(list, [list]);
  useEffect(() => connection.onOthers(list), [connection, list]);
  useEffect(() => {
    document.title = title ? `${title} – usechat` : "usechat";
  }, [title]);

  const drop = (event: DragEvent) => {
    const file = [...event.dataTransfer.files].find(isRecording);
    // The browser would open a file that is not taken, in place of the chat.
    event.preventDefault();
    if (file === undefined) return;
    void readRecording(file).then((read) => {
      setProblem("");
      setRecording(read);
      setReplays(replays + 1);
      setInspecting(true);
    }, (error: Error) => setProblem(error.message));
  };
  const open = (id: string) => {
    setRecording(undefined);
    setProblem("");
    setMenuOpen(false);
    go({ agent, chatId: id });
  };
  const remove = (id: string) => {
    void transport.remove(id).then(() => {
      connection.forget(id);
      connection.changed(id);
      list();
      if (id === chatId) open(generateId());
    }, (error: unknown) => setProblem(messageOf(error)));
  };
  return (
    <div
      className={`window ${inspecting ? "inspecting" : ""} ${isMenuOpen ? "menu-open" : ""}`}
      onDragOver={(event) => event.preventDefault()}
      onDrop={drop}
      onKeyDown={({ key }) => {
        if (key === "Escape" && isMenuOpen) closeMenu();
      }}
    >
      <Sidebar
        agents={agents}
        agent={agent}
        chats={chats}
        more={next === undefined ? undefined : more}
        current={chatId}
        linkTo={link}
        open={open}
        begin={() => open(generateId())}
        remove={remove}
        choose={(chosen) => go({ agent: chosen, chatId: generateId() })}
      />
      {isMenuOpen && <button type="button" className="veil" aria-label="Close the list of chats" onClick={closeMenu} />}
      <header className="bar">
        <button ref={menuButton} type="button" className="button quiet menu" aria-label="List of chats" aria-expanded={isMenuOpen} onClick={() => setMenuOpen(!isMenuOpen)}>
          <Icon name="menu" />
        </button>
        <h1 className="title" dir="auto">
          {title || agent.name || "New conversation"}
        </h1>
        {problem && <p role="alert" className="problem">{problem}</p>}
        <button ref={inspectorButton} type="button" className="button" aria-expanded={inspecting} onClick={() => setInspecting(!inspecting)}>
          <Icon name="inspect" />
          Inspector
        </button>
      </header>
      <Boundary key={recording ? `replay ${replays}` : chatId} instead={(again) => <Undrawn retry={() => (recording ? setRecording(undefined) : again())} />}>
        {recording ? (
          <Replay
            recording={recording}
            agent={agent}
            inspecting={inspecting}
            closeInspector={closeInspector}
            close={() => setRecording(undefined)}
          />
        ) : (
          <Loaded connection={connection} chatId={chatId}>
            {(loaded) => (
              <Conversation
                connection={connection}
                id={chatId}
                loaded={loaded}
                inspecting={inspecting}
                closeInspector={closeInspector}
                onTurn={list}
              />
            )}
          </Loaded>
        )}
      </Boundary>
    </div>
  );
}

function Undrawn({ retry }: { retry: () => void }) {
  return <main className="chat column"><Failure text="The page cannot show this." retry={retry} /></main>;
}

interface LoadedProps {
  connection: Connection;
  chatId: string;
  children: (messages: UIMessage[]) => React.ReactNode;
}

/** Loads the messages of the chat before it is shown. */
function Loaded({ connection, chatId, children }: LoadedProps) {
  const [messages, setMessages] = useState<UIMessage[]>();
  const [problem, setProblem] = useState("");
  const [attempts, setAttempts] = useState(0);
  useEffect(() => {
    let isHere = true;
    connection.transport.messages(chatId).then(
      (found) => isHere && setMessages(found),
      (error: unknown) => isHere && setProblem(messageOf(error)),
    );
    return () => {
      isHere = false;
    };
  }, [connection, chatId, attempts]);
  const retry = () => {
    setProblem("");
    setAttempts(attempts + 1);
  };
  if (problem) return <main className="chat column"><Failure text={problem} retry={retry} /></main>;
  if (messages === undefined) return <main className="chat" aria-busy="true" />;
  return children(messages);
}

function placeOf(agents: Agent[]): Place {
  const query = new URLSearchParams(location.search);
  const agent = agents.find(({ name }) => name === query.get("agent")) ?? agents[0];
  if (agent === undefined) throw new Error("The server has no agent.");
  const chatId = query.get("chat") ?? generateId();
  // A reloaded page shows the same chat.
  if (!query.has("chat")) history.replaceState(null, "", address(agents, agent, chatId));
  return { agent, chatId };
}

function address(agents: Agent[], agent: Agent, chatId: string): string {
  const query = new URLSearchParams(agents.length > 1 ? { agent: agent.name, chat: chatId } : { chat: chatId });
  return `?${query}`;
}
