import type { UIMessage } from "ai";
import { useState, useSyncExternalStore } from "react";

import type { Connection } from "../connection.ts";
import { download } from "../recording/file.ts";
import type { RecordedChunk, Turn } from "../recording/recorder.ts";
import type { Transport, Wire } from "../transport.ts";
import { CopyButton } from "../ui/CopyButton.tsx";
import { Icon } from "../ui/icons.tsx";
import { Detail } from "./Detail.tsx";
import { FiguresView } from "./FiguresView.tsx";
import { type Kind, kindOf, KINDS, NAMES } from "./kinds.ts";
import { asCurl, asPython, asUseChat } from "./samples.ts";
import { Timeline } from "./Timeline.tsx";
import { VerdictView } from "./VerdictView.tsx";

interface Props {
  connection: Connection;
  chatId: string;
  messages: UIMessage[];
  close: () => void;
}

/** What came over the wire: when, what it means and whether clients take it. */
export function Inspector({ connection, chatId, messages, close }: Props) {
  const { recorder, agent } = connection;
  useSyncExternalStore(recorder.subscribe, () => recorder.version);
  const [chosen, setChosen] = useState<number>();
  const turns = recorder.turns.filter((turn) => turn.chatId === chatId);
  const turn = turns.find(({ key }) => key === chosen) ?? turns.at(-1);
  return (
    <aside
      className="inspector"
      role="region"
      aria-label="Inspector"
      onKeyDown={({ key, target }) => {
        // There it empties the filter.
        const isFilter = target instanceof HTMLInputElement && target.value !== "";
        if (key === "Escape" && !isFilter) close();
      }}
    >
      <header>
        <h2>Inspector</h2>
        {turn && (
          <select className="field small" aria-label="Turn" value={turn.key} onChange={(event) => setChosen(Number(event.target.value))}>
            {turns.map(({ key, kind }, index) => (
              <option key={key} value={key}>
                {index + 1}. {kind}
              </option>
            ))}
          </select>
        )}
        {turn && <span className="badge">{turn.transport}</span>}
        <button type="button" className="button quiet close" aria-label="Close" autoFocus={isOver()} onClick={close}>
          <Icon name="close" />
        </button>
      </header>
      {turn ? (
        <TurnView key={turn.key} turn={turn} client={agent.client} messages={messages} />
      ) : (
        <p className="muted empty">What the server sends from now on is shown here, chunk by chunk.</p>
      )}
      {agent.socket !== null && <WireChoice transport={connection.transport} />}
    </aside>
  );
}

/** Whether it lies over the chat, which the keyboard then has to leave. */
const isOver = () => matchMedia("(max-width: 1100px)").matches;

function WireChoice({ transport }: { transport: Transport }) {
  const [wire, setWire] = useState(transport.wire);
  const choose = (chosen: Wire) => {
    transport.wire = chosen;
    setWire(chosen);
  };
  return (
    <footer className="row" role="group" aria-label="Next answer over">
      <span className="muted">Next answer over</span>
      {(["SSE", "WebSocket"] as const).map((name) => (
        <button key={name} type="button" className="button small choice" aria-pressed={wire === name} onClick={() => choose(name)}>
          {name}
        </button>
      ))}
    </footer>
  );
}

function TurnView({ turn, client, messages }: { turn: Turn; client: string; messages: UIMessage[] }) {
  const [hidden, setHidden] = useState<ReadonlySet<Kind>>(new Set());
  const [wanted, setWanted] = useState("");
  const [selected, setSelected] = useState<number>();
  const toggle = (kind: Kind) => {
    const next = new Set(hidden);
    if (!next.delete(kind)) next.add(kind);
    setHidden(next);
  };
  return (
    <>
      <div className="overview">
        <VerdictView turn={turn} client={client} select={setSelected} />
        <FiguresView turn={turn} />
      </div>
      <div className="filters">
        <input className="field small" type="search" aria-label="Filter" placeholder="Filter" value={wanted} onChange={(event) => setWanted(event.target.value)} />
        <div className="kinds" role="group" aria-label="Kinds of chunks">
          {KINDS.filter((kind) => [...turn.types].some((type) => kindOf(type) === kind)).map((kind) => (
            <button key={kind} type="button" className={`kind kind-${kind}`} aria-pressed={!hidden.has(kind)} onClick={() => toggle(kind)}>
              {NAMES[kind]}
            </button>
          ))}
        </div>
      </div>
      <Timeline chunks={turn.chunks} places={placesOf(turn, hidden, wanted.toLowerCase())} selected={selected} select={setSelected} />
      {selected !== undefined && <Detail turn={turn} index={selected} messages={messages} close={() => setSelected(undefined)} />}
      <footer className="row">
        <button type="button" className="button small" disabled={!turn.ended} onClick={() => download(turn)}>
          <Icon name="down" />
          Recording
        </button>
        {turn.kind === "asked" && (
          <div className="row" role="group" aria-label="Copy the request as a program">
            <span className="muted">Copy as</span>
            <CopyButton text={() => asCurl(turn)} label="curl" shown="curl" />
            <CopyButton text={() => asPython(turn)} label="Python" shown="Python" />
            <CopyButton text={() => asUseChat(turn)} label="useChat" shown="useChat" />
          </div>
        )}
      </footer>
    </>
  );
}

/** Where the chunks are that pass the filter; undefined if all do. */
function placesOf({ chunks }: Turn, hidden: ReadonlySet<Kind>, wanted: string): number[] | undefined {
  if (hidden.size === 0 && wanted === "") return undefined;
  const passes = ({ type, data }: RecordedChunk) => !hidden.has(kindOf(type)) && data.toLowerCase().includes(wanted);
  return chunks.flatMap((chunk, index) => (passes(chunk) ? [index] : []));
}
