/** What the server tells the page: the agents behind it, and whether it knows who asks. */
import { signedFetch } from "./session.ts";

export interface Prompt {
  text: string;
  /** What it shows, in a few words, or nothing. */
  shows: string;
}

export interface Agent {
  /** The address of its chat. */
  path: string;
  name: string;
  /** A sentence about it, or nothing. */
  about: string;
  /** What a user may begin with. */
  prompts: Prompt[];
  /** The clients that its streams are for, as `usechat check --client` names them. */
  client: string;
  /** Whether the server keeps the messages; otherwise the page sends all of them each time. */
  keeps: boolean;
  /** Whether the server has a list of chats for whoever asks. */
  lists: boolean;
  /** Where it takes the answer to a question; without one that is a message. */
  answers: string | null;
  /** The address of its WebSocket, if it has one. */
  socket: string | null;
  /** Below which paths of this server its text may show images. */
  images: string[];
}

export interface Settings {
  agents: Agent[];
  signedIn: boolean;
}

export async function loadSettings(): Promise<Settings> {
  const response = await signedFetch("page/settings");
  if (!response.ok) throw new Error(await response.text());
  const { agents, signedIn } = (await response.json()) as Settings;
  return { agents: agents.map(below), signedIn };
}

/** With paths of this origin; the server gives them relative to the page, which a proxy may have put anywhere. */
function below(agent: Agent): Agent {
  const path = (given: string) => new URL(given, location.href).pathname;
  const { answers, socket, images } = agent;
  return { ...agent, path: path(agent.path), answers: answers && path(answers), socket: socket && path(socket), images: images.map(path) };
}
