import { type MouseEvent, useId, useState } from "react";

import type { ChatEntry } from "../react.ts";
import type { Agent } from "../settings.ts";
import { Icon } from "../ui/icons.tsx";

interface Props {
  agents: Agent[];
  agent: Agent;
  chats: ChatEntry[];
  /** Loads older chats, if there are any. */
  more: (() => void) | undefined;
  current: string;
  linkTo: (chatId: string) => string;
  open: (chatId: string) => void;
  begin: () => void;
  remove: (chatId: string) => void;
  choose: (agent: Agent) => void;
}

export function Sidebar({ agents, agent, chats, more, current, linkTo, open, begin, remove, choose }: Props) {
  return (
    <nav className="sidebar" aria-label="Chats">
      <p className="brand">usechat</p>
      {agents.length > 1 && (
        <select className="field" aria-label="Agent" value={agent.name} onChange={(event) => {
          const chosen = agents.find(({ name }) => name === event.target.value);
          if (chosen) choose(chosen);
        }}>
          {agents.map(({ name }) => (
            <option key={name}>{name}</option>
          ))}
        </select>
      )}
      <button type="button" className="button wide" onClick={begin}>
        <Icon name="plus" />
        New chat
      </button>
      <ul className="chats">
        {chats.map((chat) => (
          <Entry key={chat.id} chat={chat} isCurrent={chat.id === current} href={linkTo(chat.id)} open={() => open(chat.id)} remove={() => remove(chat.id)} />
        ))}
        {more && (
          <li>
            <button type="button" className="button quiet wide" onClick={more}>
              Older chats
            </button>
          </li>
        )}
      </ul>
    </nav>
  );
}

interface EntryProps {
  chat: ChatEntry;
  isCurrent: boolean;
  href: string;
  open: () => void;
  remove: () => void;
}

function Entry({ chat, isCurrent, href, open, remove }: EntryProps) {
  const [isAsked, setAsked] = useState(false);
  const id = useId();
  const title = chat.title || "Without a title";
  const follow = (event: MouseEvent) => {
    // A click with a modifier opens a new tab.
    if (event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    open();
  };
  return (
    <li className={isCurrent ? "entry current" : "entry"}>
      <a id={id} href={href} aria-current={isCurrent ? "page" : undefined} onClick={follow} dir="auto" title={title}>
        {title}
      </a>
      {isAsked ? (
        <button type="button" className="button small danger" aria-describedby={id} autoFocus onClick={remove} onBlur={() => setAsked(false)}>
          Really delete
        </button>
      ) : (
        <button type="button" className="button quiet" aria-label="Delete" aria-describedby={id} title="Delete" onClick={() => setAsked(true)}>
          <Icon name="trash" />
        </button>
      )}
    </li>
  );
}
