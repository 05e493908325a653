/** The URL if a click on it is harmless: a whole one, of the web or of mail. */
export function safeLink(url: string): string | undefined {
  try {
    return ["http:", "https:", "mailto:"].includes(new URL(url).protocol) ? url : undefined;
  } catch {
    return undefined;
  }
}

/** The URL if it can be shown without asking another server, which would learn who looks. */
export function ownMedia(url: string): string | undefined {
  try {
    const { protocol, origin } = url.startsWith("/") ? new URL(url, location.href) : new URL(url);
    return protocol === "data:" || protocol === "blob:" || origin === location.origin ? url : undefined;
  } catch {
    return undefined;
  }
}

/** What two ways to write one address have in common, if it is one. */
export function wholeAddress(url: string): string | undefined {
  return URL.parse(url, location.href)?.href;
}

export function hostOf(url: string): string {
  try {
    return new URL(url).host;
  } catch {
    return "";
  }
}
