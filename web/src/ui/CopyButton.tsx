import { useEffect, useState } from "react";

import { Icon } from "./icons.tsx";

/** Copies a text to the clipboard, and confirms it for a moment. */
export function CopyButton({ text, label = "Copy", shown }: { text: () => string; label?: string; shown?: string }) {
  const [isDone, setDone] = useState(false);
  useEffect(() => {
    if (!isDone) return undefined;
    const timer = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [isDone]);
  const copy = () => void write(text()).then(() => setDone(true));
  return (
    <button type="button" className={shown ? "button small" : "button quiet"} aria-label={label} title={label} onClick={copy}>
      <Icon name={isDone ? "check" : "copy"} />
      {shown}
      {isDone && (
        <span role="status" className="unseen">
          Copied
        </span>
      )}
    </button>
  );
}

/** Browsers offer the clipboard only on https and localhost. Elsewhere, copy the selection. */
async function write(text: string): Promise<void> {
  if (window.isSecureContext) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
