/** The URL if a click on it is harmless: an absolute one, http, https or mailto. */
export function safeLink(url: string): string | undefined {
  try {
    return ["http:", "https:", "mailto:"].includes(new URL(url).protocol) ? url : undefined;
  } catch {
    return undefined;
  }
}

/** The URL if no other server has to be asked for it, which would learn who looks. */
export function ownMedia(url: string): string | undefined {
  try {
    const { protocol, origin } = url.startsWith("/") ? new URL(url, location.href) : new URL(url);
    return protocol === "data:" || protocol === "blob:" || origin === location.origin ? url : undefined;
  } catch {
    return undefined;
  }
}

/** The absolute form of a URL, or undefined if it is not one. */
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
