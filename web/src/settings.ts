/** The page's settings from the server: its agents, and whether the user is signed in. */
import { signedFetch } from "./session.ts";

export interface Prompt {
  text: string;
  /** What it demonstrates, in a few words, or nothing. */
  shows: string;
}

export interface Agent {
  /** The address of its chat. */
  path: string;
  name: string;
  /** A sentence about it, or nothing. */
  about: string;
  /** Prompts to begin with. */
  prompts: Prompt[];
  /** The clients that its streams are for, by the names of `usechat check --client`. */
  client: string;
  /** Whether the server keeps the messages. Otherwise the page sends all of them each time. */
  keeps: boolean;
  /** Whether the server lists the user's chats. */
  lists: boolean;
  /** The path that takes answers to questions. Without one, an answer is a message. */
  answers: string | null;
  /** The address of its WebSocket, if it has one. */
  socket: string | null;
  /** The paths of this server below which its text may show images. */
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

/** The agent with paths of this origin. The server sends them relative to the page, because a proxy may add a prefix. */
function below(agent: Agent): Agent {
  const path = (given: string) => new URL(given, location.href).pathname;
  const { answers, socket, images } = agent;
  return { ...agent, path: path(agent.path), answers: answers && path(answers), socket: socket && path(socket), images: images.map(path) };
}
