/** Which images of this server the text of an agent may show. To load any other would send a request in the user's name. */
import type { UIMessage } from "ai";
import { createContext, useContext, useMemo } from "react";

import { ownMedia, wholeAddress } from "../ui/links.ts";

interface Allowed {
  /** Files that the chat names, as whole addresses. */
  files: Set<string>;
  /** The beginnings of paths that the app allows. */
  paths: string[];
}

export const AllowedImages = createContext<Allowed>({ files: new Set(), paths: [] });

/** What the files of these messages and the app allow. It changes only when they do. */
export function useAllowedImages(messages: UIMessage[], paths: string[]): Allowed {
  const urls = messages.flatMap(({ parts }) => parts.flatMap((part) => (isFile(part) && !isData(part.url) ? [part.url] : [])));
  const key = urls.join("\n");
  return useMemo(() => ({ files: new Set(urls.flatMap((url) => wholeAddress(url) ?? [])), paths }), [key, paths]);
}

type Part = UIMessage["parts"][number];

// A recording may lack it.
const isData = (url: unknown) => typeof url !== "string" || url.startsWith("data:");
const isFile = (part: Part) => part.type === "file" || part.type === "reasoning-file";

/** The URL if the text of an agent may show it as an image. */
export function useImage(url: string): string | undefined {
  const { files, paths } = useContext(AllowedImages);
  const own = ownMedia(url);
  if (own === undefined) return undefined;
  const { protocol, pathname, href } = new URL(own, location.href);
  const isAllowed = protocol === "data:" || protocol === "blob:" || files.has(href) || paths.some((path) => pathname.startsWith(path));
  return isAllowed ? own : undefined;
}
